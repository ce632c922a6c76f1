"""What scripts ask about the way in which their Horovod was built.

There are no builds with and without parts here, so the answers do not say what is linked. They say
what follows for a script: whether it may take the way that it has for a "yes".
"""

from __future__ import annotations

from farandole import lifecycle


def mpi_threads_supported() -> bool:
    """Yes: every call may come from any thread. Raises CallError before init()."""
    lifecycle.engine()
    return True


def mpi_enabled() -> bool:
    """Yes, though there is no MPI here: scripts ask before they use Adasum, which works."""
    return True


def mpi_built() -> bool:
    """Yes: see mpi_enabled(). Scripts that were started by mpirun ask for it."""
    return True


def gloo_enabled() -> bool:
    """Yes, though there is no Gloo here: scripts ask for what Horovod can do with Gloo alone, such
    as init() after shutdown(), or elastic jobs."""
    return True


def gloo_built() -> bool:
    """Yes: see gloo_enabled()."""
    return True


def nccl_built() -> int:
    """The version of NCCL: 0, none. Tensors of GPUs work, and go through host memory."""
    return 0


def cuda_built() -> bool:
    """No: see nccl_built()."""
    return False


def rocm_built() -> bool:
    """No: see nccl_built()."""
    return False


def ddl_built() -> bool:
    """No: no call needs IBM's DDL."""
    return False


def ccl_built() -> bool:
    """No. Scripts ask in order to leave out what Intel's oneCCL cannot do; here they need not."""
    return False
