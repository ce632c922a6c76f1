"""Farandole for TensorFlow under Horovod's name: `import horovod.tensorflow as hvd`."""

from typing import Any as _Any

import farandole.tensorflow as _farandole
from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.tensorflow import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.util import check_extension as check_extension
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import split_list as split_list
from horovod.tensorflow import compression as compression
from horovod.tensorflow import functions as functions
from horovod.tensorflow import mpi_ops as mpi_ops

# This import binds the name `elastic` to horovod.tensorflow.elastic.
from horovod.tensorflow.elastic import run as _run  # noqa: F401
from horovod.tensorflow.mpi_ops import (
    check_num_rank_power_of_2 as check_num_rank_power_of_2,
)
from horovod.tensorflow.mpi_ops import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from horovod.tensorflow.util import refs_to_vars as refs_to_vars
from horovod.tensorflow.util import vars_to_refs as vars_to_refs


def __getattr__(name: str) -> _Any:
    # SyncBatchNormalization imports Keras, so it is imported only on first use.
    return getattr(_farandole, name)
