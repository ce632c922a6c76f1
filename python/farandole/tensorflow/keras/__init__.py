"""farandole.keras under the name that scripts for TensorFlow use:
`import farandole.tensorflow.keras as hvd`."""

from farandole import keras as _keras
from farandole.keras import *  # noqa: F403

__all__ = list(_keras.__all__)
