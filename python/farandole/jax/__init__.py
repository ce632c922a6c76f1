"""Farandole for JAX: `import farandole.jax as hvd`."""

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError(
        "farandole.jax needs JAX, which is not installed here: run `pip install jax`"
    ) from _error

if _jax.version.__version_info__ < (0, 6, 2):
    raise ImportError(
        f"farandole.jax needs JAX 0.6.2 or newer; this is JAX {_jax.__version__}: run `pip install "
        "--upgrade jax`"
    )

from farandole import exports
from farandole.calls import barrier, join
from farandole.compression import Compressor
from farandole.exports import *  # noqa: F403
from farandole.jax import elastic
from farandole.jax.compression import Compression
from farandole.jax.operations import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_alltoall,
    grouped_broadcast,
    grouped_reducescatter,
    reducescatter,
)
from farandole.jax.parameters import broadcast_parameters, check_parameters
from farandole.jax.training import DistributedOptimizer, grad, value_and_grad
from farandole.objects import allgather_object, broadcast_object

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "check_parameters",
    "elastic",
    "grad",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_alltoall",
    "grouped_broadcast",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "value_and_grad",
]
__all__ += exports.__all__
