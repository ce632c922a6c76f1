"""Farandole for PyTorch under Horovod's name: `import horovod.torch as hvd`."""

from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.torch import *  # noqa: F403
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.common.util import check_extension as check_extension
from horovod.torch import compression as compression
from horovod.torch import functions as functions
from horovod.torch import mpi_ops as mpi_ops
from horovod.torch import optimizer as optimizer
from horovod.torch import sync_batch_norm as sync_batch_norm

# This import binds the name `elastic` to horovod.torch.elastic, not to farandole.torch.elastic.
from horovod.torch.elastic import run as _run  # noqa: F401
