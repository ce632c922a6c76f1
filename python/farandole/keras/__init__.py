"""Farandole for Keras 3: `import farandole.keras as hvd`."""

try:
    import keras as _keras
except ImportError as _error:
    raise ImportError(
        "farandole.keras needs Keras 3, which is not installed here: run `pip install keras`"
    ) from _error

if tuple(map(int, _keras.__version__.split(".")[:2])) < (3, 5):
    raise ImportError(
        f"farandole.keras needs Keras 3.5 or newer; this is Keras {_keras.__version__}: run `pip "
        "install --upgrade keras`"
    )

from farandole import exports
from farandole.calls import barrier, join
from farandole.compression import Compressor
from farandole.exports import *  # noqa: F403
from farandole.keras import callbacks, elastic
from farandole.keras.compression import Compression
from farandole.keras.models import load_model
from farandole.keras.operations import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    check_parameters,
    reducescatter,
)
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.sync_batch_norm import SyncBatchNormalization
from farandole.objects import allgather_object, broadcast_object

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "check_parameters",
    "elastic",
    "join",
    "load_model",
    "reducescatter",
]
__all__ += exports.__all__
