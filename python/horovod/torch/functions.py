"""Functions that give every rank the same parameters, optimizer state and objects."""

from farandole.torch import (
    ProcessSet,
    allgather,
    allgather_object,
    broadcast_,
    broadcast_async_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    global_process_set,
    rank,
    size,
    synchronize,
)

__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast_",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "rank",
    "size",
    "synchronize",
]
