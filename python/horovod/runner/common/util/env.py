"""Find the rank of this process from its launcher's environment variables."""

from __future__ import annotations

import os

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """The variables of the first launcher that sets both are used: `farandole run` and horovodrun
    (HOROVOD_RANK and HOROVOD_SIZE), Open MPI, then MPICH and others with PMI. The result is (0, 1)
    if none does, as under srun without PMI. Works before init()."""
    for rank, size in _PAIRS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1
