"""The operations on torch tensors, with Horovod's names and arguments.

All members of the process_set must make the same call, with the same name if one is given. Tensors
may have any strides and be on any device. A tensor that is not contiguous, or not in host memory,
is copied.

- A plain call blocks until it can return the result, a new tensor. If the tensor requires a
  gradient, so does the result. Then backward() makes calls too, so all members must run it.
- A call whose name ends in _ also blocks, and writes the result into the tensor. Autograd does not
  record it.
- A call with _async in its name returns a handle at once. Do not use the tensor until
  `synchronize(handle)` has returned the result. Autograd does not record the call.
- A grouped call runs the operation on each tensor of a list, and returns the list of results. If
  one tensor fails, the grouped call raises, but the other tensors have their results.

If the members disagree, or if the call is invalid on one of them, all members raise a CallError
with the same text: in the plain call, or in `synchronize`. A malformed call raises a CallError at
once, and only on this rank. Examples are an argument of the wrong type, a dtype that cannot be
sent, a name in use, and a group without this rank. A malformed grouped call starts nothing. If a
member is lost, the waiting call raises a GroupLostError. Several threads may make calls if all
their calls have names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import torch

from farandole import arguments
from farandole.call_documentation import documented
from farandole.compression import AnyCompressor, checked_compression
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle, Handle
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Operation,
    Reducescatter,
    return_array,
)
from farandole.reduce_op import Average, ReduceOp, reduce_op_of
from farandole.torch.calls import (
    run,
    run_batch,
    run_in_place,
    start,
    start_batch,
    start_batch_in_place,
    start_in_place,
)
from farandole.torch.compression import Compression
from farandole.torch.tensors import check

# How many rows each member gets.
Splits: TypeAlias = Sequence[int] | torch.Tensor

_INT32_MAX = torch.iinfo(torch.int32).max


# size waiver: Horovod's arguments
@documented
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Return the elementwise reduction of all members' tensors. Each tensor is multiplied by
    prescale_factor, and the result by postscale_factor. An Average of integers is rounded toward
    zero.

    All members give the same shape and dtype. For Sum and Average, backward() computes the exact
    gradient. For the other ops it reduces the gradients by the same op, as Horovod does; that is
    not the derivative.

    Example::

        mean = hvd.allreduce(torch.tensor([float(hvd.rank())]))
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)  # each element is hvd.size()
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


# size waiver: Horovod's arguments
@documented
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    """Start an allreduce and return its handle.

    Example::

        handle = hvd.allreduce_async(torch.ones(3), name="loss")
        mean = hvd.synchronize(handle)
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return start(operation, tensor, name, return_array)


# size waiver: Horovod's arguments
@documented
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Write the result of an allreduce into the tensor and return the tensor."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return run_in_place(operation, tensor, name)


# size waiver: Horovod's arguments
@documented
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    """Start an allreduce into the tensor and return its handle."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return start_in_place(operation, tensor, name)


# size waiver: Horovod's arguments
@documented
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    """Return the result of an allreduce for each tensor. The tensors are sent as one batch.

    Example::

        first, second = hvd.grouped_allreduce([torch.ones(3), torch.ones(2, 2)], op=hvd.Sum)
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return _run_batch(operation, tensors, name, compression)


# size waiver: Horovod's arguments
@documented
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped allreduce and return one handle."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return start_batch(_operation_per_tensor(operation, tensors), tensors, name, return_array)


# size waiver: Horovod's arguments
@documented
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    """Write the result of an allreduce into each tensor and return the tensors."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return start_batch_in_place(operation, tensors, name, blocking=True).wait()


# size waiver: Horovod's arguments
@documented
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped allreduce into the tensors and return one handle."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return start_batch_in_place(operation, tensors, name)


@documented
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Return the tensor of root_rank. All members give the same shape and dtype.

    As in Horovod, the gradient on root_rank is the average of the gradients of all members.

    Example::

        seed = hvd.broadcast(torch.tensor([hvd.rank() + 7]), root_rank=0)  # 7 on all ranks
    """
    return _run(Broadcast(process_set, root_rank), tensor, name)


@documented
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    """Start a broadcast and return its handle."""
    return start(Broadcast(process_set, root_rank), tensor, name, return_array)


@documented
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Write root_rank's values into the tensor and return the tensor."""
    return run_in_place(Broadcast(process_set, root_rank), tensor, name)


@documented
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    """Start a broadcast into the tensor and return its handle."""
    return start_in_place(Broadcast(process_set, root_rank), tensor, name)


@documented
def grouped_broadcast(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    """Return, for each tensor of the list, the tensor of root_rank."""
    return _run_batch(Broadcast(process_set, root_rank), tensors, name)


@documented
def grouped_broadcast_async(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped broadcast and return one handle."""
    operations = _operation_per_tensor(Broadcast(process_set, root_rank), tensors)
    return start_batch(operations, tensors, name, return_array)


@documented
def grouped_broadcast_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    """Write root_rank's values into each tensor and return the tensors."""
    operation = Broadcast(process_set, root_rank)
    return start_batch_in_place(operation, tensors, name, blocking=True).wait()


@documented
def grouped_broadcast_async_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped broadcast into the tensors and return one handle."""
    return start_batch_in_place(Broadcast(process_set, root_rank), tensors, name)


@documented
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> torch.Tensor:
    """Return all members' tensors, joined along the first dimension in the order of the ranks.

    The tensors have at least one dimension. The first dimension may differ between members; the
    other dimensions and the dtype must be equal. As in Horovod, the gradient of a row is the
    average of the gradients of all members. If each member computes the loss from all rows, this
    is 1/size of the gradient of one process that has all rows.

    Example::

        own_rows = torch.full((hvd.rank() + 1, 2), hvd.rank())
        rows = hvd.allgather(own_rows)  # with two ranks: one row of zeros, two rows of ones
    """
    return _run(Allgather(process_set), tensor, name)


@documented
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> Handle[torch.Tensor]:
    """Start an allgather and return its handle."""
    return start(Allgather(process_set), tensor, name, return_array)


@documented
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    """Return the result of an allgather for each tensor."""
    return _run_batch(Allgather(process_set), tensors, name)


@documented
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped allgather and return one handle."""
    operations = _operation_per_tensor(Allgather(process_set), tensors)
    return start_batch(operations, tensors, name, return_array)


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Splits,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@documented
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send some rows of the tensor to each member, and return the rows that the members sent here,
    in the order of the ranks.

    The tensors have at least one dimension. The dtype and all dimensions except the first must be
    equal on all members. Rows that remain after the last split are not sent.

    Example::

        # With two ranks, rank 0 gets the first row of each rank, and rank 1 gets the second row.
        rows = hvd.alltoall(torch.arange(hvd.size()).reshape(-1, 1) + 10 * hvd.rank())

    Returns:
        Without splits, the rows. With splits, a pair: the rows, and how many came from each member,
        as a tensor of int32 in host memory (int64 if a number needs it).
    """
    received = run(Alltoall(process_set, splits), tensor, name)
    return received[0] if splits is None else _with_received_splits(*received)


@documented
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """Start an alltoall and return its handle. The result is a pair even without splits."""
    return start(Alltoall(process_set, splits), tensor, name, _with_received_splits)


@overload
def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]: ...
@overload
def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Splits | None],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[tuple[torch.Tensor, torch.Tensor]]: ...
@documented
def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Splits | None] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor] | list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the result of an alltoall for each tensor. `splits` is None, or a list with the splits
    of each tensor."""
    results = run_batch(_alltoall_per_tensor(tensors, splits, process_set), tensors, name)
    if splits is None:
        return [tensor for tensor, _ in results]
    return [_with_received_splits(*received) for received in results]


@documented
def grouped_alltoall_async(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Splits | None] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[tuple[torch.Tensor, torch.Tensor]]:
    """Start a grouped alltoall and return one handle. Each result is a pair. `splits` is None, or a
    list with the splits of each tensor."""
    operations = _alltoall_per_tensor(tensors, splits, process_set)
    return start_batch(operations, tensors, name, _with_received_splits)


# size waiver: Horovod's arguments
@documented
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's part of the rows of an allreduce.

    The parts are in the order of the ranks. If the number of rows is not a multiple of the number
    of members, the first ranks get one row more. All members give the same shape, of at least one
    dimension, and the same dtype. `op` cannot be Adasum. Only Sum and Average have a gradient. As
    in Horovod, this gradient is the number of members times the exact one.

    Example::

        part = hvd.reducescatter(torch.ones(4, 3), op=hvd.Sum)  # with two ranks: two rows of twos
    """
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


@documented
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """Start a reducescatter and return its handle."""
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start(operation, tensor, name, return_array)


# size waiver: Horovod's arguments
@documented
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return the result of a reducescatter for each tensor."""
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run_batch(operation, tensors, name, compression)


@documented
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> BatchHandle[torch.Tensor]:
    """Start a grouped reducescatter and return one handle."""
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start_batch(_operation_per_tensor(operation, tensors), tensors, name, return_array)


def _operation_per_tensor(operation: Operation, tensors: Sequence[torch.Tensor]) -> list[Operation]:
    return [operation] * len(arguments.checked_batch(tensors))


def _alltoall_per_tensor(
    tensors: Sequence[torch.Tensor], splits: Sequence[Splits | None] | None, process_set: Group
) -> list[Alltoall]:
    count = len(arguments.checked_batch(tensors))
    split_lists = (
        [None] * count if splits is None else arguments.checked_batch_splits(splits, count)
    )
    return [Alltoall(process_set, split_list) for split_list in split_lists]


def _with_received_splits(
    tensor: torch.Tensor, received_rows: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor and the numbers of received rows. The numbers are int32, as in Horovod, or
    int64 if one of them does not fit into int32."""
    fits_int32 = max(received_rows) <= _INT32_MAX
    dtype = torch.int32 if fits_int32 else torch.int64
    return tensor, torch.tensor(received_rows, dtype=dtype, device="cpu")


def _run(
    operation: Operation,
    tensor: torch.Tensor,
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> torch.Tensor:
    if compression is Compression.none:
        return run(operation, tensor, name)[0]
    sent_tensor, context = _compressed(compression, tensor)
    return compression.decompress(run(operation, sent_tensor, name)[0], context)


def _run_batch(
    operation: Operation,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> list[torch.Tensor]:
    operations = _operation_per_tensor(operation, tensors)
    if compression is Compression.none:
        return [tensor for tensor, _ in run_batch(operations, tensors, name)]
    pairs = [_compressed(compression, tensor) for tensor in tensors]
    results = run_batch(operations, [sent for sent, _ in pairs], name)
    return [
        compression.decompress(tensor, context)
        for (tensor, _), (_, context) in zip(results, pairs, strict=True)
    ]


def _compressed(compression: AnyCompressor, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    check(tensor)
    return checked_compression(compression).compress(tensor)
