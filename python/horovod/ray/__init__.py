"""Horovod has this; here it does not exist yet."""

raise ImportError(
    "horovod.ray: Farandole does not work with Ray yet; horovod.torch does exist", name=__name__
)
