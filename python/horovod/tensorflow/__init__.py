"""Raise ImportError: Farandole has no frontend for TensorFlow yet."""

raise ImportError(
    "horovod.tensorflow: Farandole does not work with TensorFlow yet; horovod.torch does exist",
    name=__name__,
)
