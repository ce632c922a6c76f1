"""Farandole: one training script on many workers.

Import the frontend of your framework: `import farandole.torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farandole import core
from farandole.errors import CallError, FarandoleError, GroupLostError, WorkerError
from farandole.group import Group, ProcessSet, global_process_set
from farandole.lifecycle import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from farandole.queries import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from farandole.reduce_op import Adasum, Average, AverageOfPresent, Max, Min, Product, ReduceOp, Sum
from farandole.timeline import start_timeline, stop_timeline

if TYPE_CHECKING:
    from farandole.jobs import await_workers, launch_workers, run, stop_workers

__version__ = core.version

__all__ = [
    "Adasum",
    "Average",
    "AverageOfPresent",
    "CallError",
    "FarandoleError",
    "Group",
    "GroupLostError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "WorkerError",
    "add_process_set",
    "await_workers",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "launch_workers",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "stop_workers",
]


def __getattr__(name: str) -> Any:
    """Import farandole.jobs on first use, because most workers do not need it."""
    if name in ("await_workers", "launch_workers", "run", "stop_workers"):
        return getattr(import_module("farandole.jobs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
