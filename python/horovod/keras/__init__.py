"""Farandole for Keras under Horovod's name: `import horovod.keras as hvd`.

Some functions have fewer or different arguments than those of horovod.tensorflow.keras.
"""

from typing import Any

import farandole.keras as _farandole
from farandole.compression import AnyCompressor, NoneCompressor
from farandole.exports import *  # noqa: F403 - mypy finds these names only here
from farandole.keras import Compression as Compression
from farandole.keras import Compressor as Compressor
from farandole.keras import PartialDistributedOptimizer as PartialDistributedOptimizer
from farandole.keras import SyncBatchNormalization as SyncBatchNormalization
from farandole.keras import allgather as allgather
from farandole.keras import allgather_object as allgather_object
from farandole.keras import barrier as barrier
from farandole.keras import broadcast as broadcast
from farandole.keras import broadcast_global_variables as broadcast_global_variables
from farandole.keras import broadcast_object as broadcast_object
from farandole.keras import broadcast_variables as broadcast_variables
from farandole.keras import check_parameters as check_parameters
from farandole.keras import join as join
from farandole.keras import load_model as load_model
from farandole.keras import reducescatter as reducescatter
from farandole.reduce_op import Average, ReduceOp
from horovod.keras import callbacks as callbacks
from horovod.keras import elastic as elastic


# size waiver: Horovod's arguments
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Make an optimizer combine the gradients of all ranks: see
    farandole.keras.DistributedOptimizer()."""
    return _farandole.DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
    )


# size waiver: Horovod's arguments
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: AnyCompressor = NoneCompressor,
) -> Any:
    """Return the elementwise reduction of all ranks' values: see farandole.keras.allreduce(). If
    `op` is given, `average` has no effect."""
    return _farandole.allreduce(
        value,
        name,
        average if op is None else None,
        prescale_factor,
        postscale_factor,
        op,
        compression,
    )
