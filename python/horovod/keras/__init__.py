"""Horovod has this; here it does not exist yet."""

raise ImportError(
    "horovod.keras: Farandole does not work with Keras yet; horovod.torch does exist", name=__name__
)
