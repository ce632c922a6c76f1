"""The calls of horovod.tensorflow, at Horovod's path."""

from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.tensorflow.operations import (  # noqa: F401 - as in Horovod
    allgather,
    alltoall,
    broadcast,
    grouped_allgather,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from farandole.tensorflow.variables import broadcast_  # noqa: F401 - as in Horovod
from horovod.common.basics import HorovodBasics
from horovod.common.util import (  # noqa: F401 - as in Horovod
    check_installed_version,
    get_average_backwards_compatibility_fun,
    get_ext_suffix,
    gpu_available,
    num_rank_is_power_2,
)

_basics = HorovodBasics()
check_num_rank_power_of_2 = num_rank_is_power_2
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
