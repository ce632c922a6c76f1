"""Raise ImportError: Farandole has no frontend for Spark yet."""

raise ImportError(
    "horovod.spark: Farandole does not work with Spark yet; horovod.torch does exist", name=__name__
)
