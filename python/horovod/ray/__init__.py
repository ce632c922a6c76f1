"""Raise ImportError: Farandole has no frontend for Ray yet."""

raise ImportError(
    "horovod.ray: Farandole does not work with Ray yet; horovod.torch does exist", name=__name__
)
