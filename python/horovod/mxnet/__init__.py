"""Raise ImportError: Farandole has no frontend for MXNet yet."""

raise ImportError(
    "horovod.mxnet: Farandole does not work with MXNet yet; horovod.torch does exist", name=__name__
)
