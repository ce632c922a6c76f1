"""Training loops that restart from their last commit when a rank is lost."""

from farandole.torch.elastic import *  # noqa: F403
from horovod.torch.elastic import sampler as sampler
from horovod.torch.elastic import state as state
