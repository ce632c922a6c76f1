"""Join the job and query it through methods of an object."""

from __future__ import annotations

import farandole
from farandole import lifecycle


class HorovodBasics:
    """The functions that every frontend exports, as methods. All objects refer to the same job."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """Ignore the arguments, which say where Horovod's library is. Farandole needs no path."""

    init = staticmethod(farandole.init)
    shutdown = staticmethod(farandole.shutdown)
    is_initialized = staticmethod(farandole.is_initialized)
    start_timeline = staticmethod(farandole.start_timeline)
    stop_timeline = staticmethod(farandole.stop_timeline)
    rank = staticmethod(farandole.rank)
    size = staticmethod(farandole.size)
    local_rank = staticmethod(farandole.local_rank)
    local_size = staticmethod(farandole.local_size)
    cross_rank = staticmethod(farandole.cross_rank)
    cross_size = staticmethod(farandole.cross_size)
    is_homogeneous = staticmethod(farandole.is_homogeneous)
    mpi_threads_supported = staticmethod(farandole.mpi_threads_supported)
    mpi_enabled = staticmethod(farandole.mpi_enabled)
    mpi_built = staticmethod(farandole.mpi_built)
    gloo_enabled = staticmethod(farandole.gloo_enabled)
    gloo_built = staticmethod(farandole.gloo_built)
    nccl_built = staticmethod(farandole.nccl_built)
    ddl_built = staticmethod(farandole.ddl_built)
    ccl_built = staticmethod(farandole.ccl_built)
    cuda_built = staticmethod(farandole.cuda_built)
    rocm_built = staticmethod(farandole.rocm_built)
    _get_process_set_ids_and_ranks = staticmethod(lifecycle.process_set_ids_and_ranks)
