"""The calls of horovod.torch, at Horovod's path."""

from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.torch import *  # noqa: F403
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError  # noqa: F401 - as in Horovod
from horovod.common.util import (  # noqa: F401 - as in Horovod
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)

_basics = HorovodBasics()
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
