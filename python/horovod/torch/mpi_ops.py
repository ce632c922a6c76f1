"""The calls of horovod.torch, at the path where Horovod has them."""

from farandole.torch import *  # noqa: F403
from horovod.common.basics import HorovodBasics

_basics = HorovodBasics()
