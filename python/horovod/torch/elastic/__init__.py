"""Training loops that continue from their last commit after a failure."""

from farandole.torch.elastic import *  # noqa: F403
from horovod.torch.elastic import sampler as sampler
from horovod.torch.elastic import state as state
