"""Farandole for PyTorch: `import farandole.torch as hvd` in place of Horovod's module."""

from farandole import exports
from farandole.calls import (
    barrier,
    join,
    poll,
    synchronize,
)
from farandole.compression import Compressor
from farandole.exports import *  # noqa: F403
from farandole.objects import (
    allgather_object,
    broadcast_object,
)
from farandole.torch import distributed as _distributed  # noqa: F401 - registers the backend
from farandole.torch import elastic
from farandole.torch.compression import Compression
from farandole.torch.operations import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_alltoall,
    grouped_alltoall_async,
    grouped_broadcast,
    grouped_broadcast_,
    grouped_broadcast_async,
    grouped_broadcast_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from farandole.torch.optimizer import (
    AnyDistributedOptimizer,
    DistributedOptimizer,
)
from farandole.torch.parameters import (
    check_parameters,
)
from farandole.torch.sparse import sparse_allreduce_async
from farandole.torch.state import (
    broadcast_optimizer_state,
    broadcast_parameters,
)
from farandole.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "AnyDistributedOptimizer",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_alltoall",
    "grouped_alltoall_async",
    "grouped_broadcast",
    "grouped_broadcast_",
    "grouped_broadcast_async",
    "grouped_broadcast_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += exports.__all__
