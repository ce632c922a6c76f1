"""Find the rank of this process from its launcher's environment variables."""

from __future__ import annotations

import os

_RANK_AND_SIZE_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank and size from the launcher's variables. First try those of `farandole run`
    and horovodrun (HOROVOD_RANK and HOROVOD_SIZE), then those of Open MPI, then those of PMI, which
    MPICH and others use. If none are set, as under srun without PMI, return (0, 1). This function
    also works before init()."""
    for rank_name, size_name in _RANK_AND_SIZE_VARIABLES:
        if rank_name in os.environ and size_name in os.environ:
            return int(os.environ[rank_name]), int(os.environ[size_name])
    return 0, 1
