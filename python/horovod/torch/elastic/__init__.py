"""Training loops that continue from their last commit after a failure."""

from farandole.elastic import run_fn as run_fn
from farandole.torch import init as init
from farandole.torch import shutdown as shutdown
from farandole.torch.elastic import *  # noqa: F403
from horovod.torch.elastic import sampler as sampler
from horovod.torch.elastic import state as state
