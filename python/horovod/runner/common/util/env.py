"""Who this process is, by the variables of whoever has started it."""

from __future__ import annotations

import os

# In this order: ours and Horovod's, Open MPI's, those of MPICH and its like.
_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """(0, 1) where no launcher has said anything. Works before init()."""
    for rank, size in _PAIRS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
