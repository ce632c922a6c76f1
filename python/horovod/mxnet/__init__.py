"""Horovod has this; here it does not exist yet."""

raise ImportError(
    "horovod.mxnet: Farandole does not work with MXNet yet; horovod.torch does exist", name=__name__
)
