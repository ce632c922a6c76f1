"""Horovod has this; here it does not exist yet."""

raise ImportError(
    "horovod.spark: Farandole does not work with Spark yet; horovod.torch does exist", name=__name__
)
