"""The calls of horovod.torch, at Horovod's path."""

from farandole.torch import *  # noqa: F403
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError  # noqa: F401 - as in Horovod

_basics = HorovodBasics()
