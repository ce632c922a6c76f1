"""The calls of horovod.torch, at Horovod's path."""

from farandole.torch import *  # noqa: F403
from horovod.common.basics import HorovodBasics

_basics = HorovodBasics()
