"""Training loops that restart from their last commit when a rank is lost."""

from farandole.elastic import run_fn as run_fn
from farandole.torch import init as init
from farandole.torch import shutdown as shutdown
from farandole.torch.elastic import *  # noqa: F403
from horovod.torch.elastic import sampler as sampler
from horovod.torch.elastic import state as state
