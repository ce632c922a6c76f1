"""Farandole for Keras under Horovod's name: `import horovod.tensorflow.keras as hvd`."""

from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.keras import *  # noqa: F403
from horovod.common.util import is_version_greater_equal_than as is_version_greater_equal_than

# These imports bind the names `callbacks` and `elastic` to the modules of this folder.
from horovod.tensorflow.keras.callbacks import MetricAverageCallback as _Callback  # noqa: F401
from horovod.tensorflow.keras.elastic import run as _run  # noqa: F401
