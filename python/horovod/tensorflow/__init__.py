"""Horovod has this; here it does not exist yet."""

raise ImportError(
    "horovod.tensorflow: Farandole does not work with TensorFlow yet; horovod.torch does exist",
    name=__name__,
)
