"""Farandole for TensorFlow: `import farandole.tensorflow as hvd`."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    import tensorflow as _tensorflow
except ImportError as _error:
    raise ImportError(
        "farandole.tensorflow needs TensorFlow, which is not installed here: run `pip install "
        "tensorflow` or `pip install tensorflow-cpu`"
    ) from _error

if tuple(map(int, _tensorflow.__version__.split(".")[:2])) < (2, 16):
    raise ImportError(
        "farandole.tensorflow needs TensorFlow 2.16 or newer; this is TensorFlow "
        f"{_tensorflow.__version__}: run `pip install --upgrade tensorflow`"
    )

from farandole import exports
from farandole.calls import barrier
from farandole.compression import Compressor
from farandole.exports import *  # noqa: F403
from farandole.tensorflow import elastic
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from farandole.tensorflow.operations import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_alltoall,
    grouped_broadcast,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from farandole.tensorflow.optimizer import DistributedOptimizer
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from farandole.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
    check_parameters,
)

if _TYPE_CHECKING:
    from farandole.keras.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_alltoall",
    "grouped_broadcast",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += exports.__all__


def __getattr__(name: str) -> _Any:
    if name == "SyncBatchNormalization":  # imports Keras, which other programs do not need
        return _importlib.import_module("farandole.keras.sync_batch_norm").SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
