"""The functions with which scripts ask how their Horovod was built.

Farandole has no optional parts, so these functions do not say whether a library is linked. They say
whether a script may run the code that needs this library.
"""

from __future__ import annotations

from farandole import lifecycle


def mpi_threads_supported() -> bool:
    """Return True: every call may be made from any thread. Raise CallError before init()."""
    lifecycle.engine()
    return True


def mpi_enabled() -> bool:
    """Return True, although there is no MPI: scripts ask this before they use Adasum, and Adasum
    works here."""
    return True


def mpi_built() -> bool:
    """Return True, like mpi_enabled(). Scripts that mpirun has started ask for this."""
    return True


def gloo_enabled() -> bool:
    """Return True, although there is no Gloo.

    Scripts ask before they use features that Horovod has only with Gloo, such as init() after
    shutdown(), or elastic jobs.
    """
    return True


def gloo_built() -> bool:
    """Return True, like gloo_enabled()."""
    return True


def nccl_built() -> int:
    """Return 0 as the version of NCCL, because there is no NCCL. Tensors on GPUs work; they go
    through host memory."""
    return 0


def cuda_built() -> bool:
    """Return False, because tensors on GPUs go through host memory."""
    return False


def rocm_built() -> bool:
    """Return False, because tensors on GPUs go through host memory."""
    return False


def ddl_built() -> bool:
    """Return False: no call needs IBM's DDL."""
    return False


def ccl_built() -> bool:
    """Return False. If this were true, scripts would avoid calls that Intel's oneCCL lacks;
    Farandole has them."""
    return False
