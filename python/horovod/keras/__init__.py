"""Raise ImportError: Farandole has no frontend for Keras yet."""

raise ImportError(
    "horovod.keras: Farandole does not work with Keras yet; horovod.torch does exist", name=__name__
)
