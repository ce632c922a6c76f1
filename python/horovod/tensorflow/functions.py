"""Functions that give every rank the same variables and objects."""

from farandole.tensorflow import (
    ProcessSet,
    allgather,
    allgather_object,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    global_process_set,
    rank,
    size,
)

__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "global_process_set",
    "rank",
    "size",
]
