"""The operations on torch tensors, with Horovod's names and arguments.

Every call must be made by all members of its process_set, with the same name if one is given. Calls
on tensors of any strides work; one that is not contiguous costs a copy.

- The plain ones wait for their result, a new tensor. If it comes from one with a gradient it has
  one, too: backward() then makes calls of its own, so it must run on all members.
- Those that end in _ put the result into the tensor itself, unnoticed by its gradient.
- Those with _async return a handle at once; until `synchronize` has returned the result, leave the
  tensor alone. These results carry no gradient.
- Those with an argument `compression` send the tensor in another form: see compression.py.
- A grouped call does to each tensor of a list what the other one does, and its result is the list
  of results. If one of the tensors cannot be done the grouped call raises; the others are done.

If the members disagree, or if the call is invalid on any of them, all members raise an error with
the same text when they wait: in the plain call, or in `synchronize`. A malformed call (arguments of
a wrong kind, a dtype that cannot be sent, a name in use, a group without this rank) raises at once,
on this rank only; if it is in a grouped call, no call of the group is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole import arguments
from farandole.compression import AnyCompressor
from farandole.compression import checked as checked_compression
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle, Handle
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Operation,
    Reducescatter,
    array_only,
)
from farandole.reduce_op import Average, ReduceOp, chosen
from farandole.torch.calls import (
    run,
    run_batch,
    start,
    start_batch,
    start_batch_in_place,
    start_in_place,
)
from farandole.torch.compression import Compression
from farandole.torch.tensors import check

_INT32_MAX = torch.iinfo(torch.int32).max


# size waiver: Horovod's arguments
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
    """A new tensor: postscale_factor × the elementwise Average (or another op) over all ranks of
    prescale_factor × tensor. An Average of integers is cut off toward zero.

    `average` is Horovod's older way to say op: True is Average, False is Sum. A Sum or an Average
    has the right gradient; that of another op is reduced by the same op, as in Horovod, which is
    not its derivative.
    """
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


# size waiver: Horovod's arguments
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start(operation, tensor, name, array_only)


# size waiver: Horovod's arguments
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like allreduce, with the result in the tensor itself, unnoticed by its gradient."""
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_in_place(operation, tensor, name, waits=True).wait()


# size waiver: Horovod's arguments
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_in_place(operation, tensor, name)


# size waiver: Horovod's arguments
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
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return _run_each(operation, tensors, name, compression)


# size waiver: Horovod's arguments
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_batch(_for_each(operation, tensors), tensors, name, array_only)


# size waiver: Horovod's arguments
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_batch_in_place(operation, tensors, name, waits=True).wait()


# size waiver: Horovod's arguments
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    operation = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_batch_in_place(operation, tensors, name)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the one of root_rank, a rank of the world that is in the process_set."""
    return _run(Broadcast(process_set, root_rank), tensor, name)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return start(Broadcast(process_set, root_rank), tensor, name, array_only)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like broadcast, with the result in the tensor itself, unnoticed by its gradient."""
    return start_in_place(Broadcast(process_set, root_rank), tensor, name, waits=True).wait()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return start_in_place(Broadcast(process_set, root_rank), tensor, name)


def grouped_broadcast(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    return _run_each(Broadcast(process_set, root_rank), tensors, name)


def grouped_broadcast_async(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    operations = _for_each(Broadcast(process_set, root_rank), tensors)
    return start_batch(operations, tensors, name, array_only)


def grouped_broadcast_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    operation = Broadcast(process_set, root_rank)
    return start_batch_in_place(operation, tensors, name, waits=True).wait()


def grouped_broadcast_async_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    return start_batch_in_place(Broadcast(process_set, root_rank), tensors, name)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, one after another along the first dimension, which may differ."""
    return _run(Allgather(process_set), tensor, name)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> Handle[torch.Tensor]:
    return start(Allgather(process_set), tensor, name, array_only)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    return _run_each(Allgather(process_set), tensors, name)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    operations = _for_each(Allgather(process_set), tensors)
    return start_batch(operations, tensors, name, array_only)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends each member some rows of the tensor, and returns what came from them, in their order.

    splits: how many rows each member gets, as a list, or as a tensor on any device; None: all the
    same number. With splits the result is a pair: the tensor, and how many rows came from each
    member, as a tensor in host memory.
    """
    received = run(Alltoall(process_set, splits), tensor, name)
    return received[0] if splits is None else _with_received_splits(*received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """The result is the pair of received tensor and received_splits, also without splits."""
    return start(Alltoall(process_set, splits), tensor, name, _with_received_splits)


def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor] | list[tuple[torch.Tensor, torch.Tensor]]:
    """splits: None, or those of each tensor. The results are as those of alltoall."""
    results = run_batch(_alltoall_of_each(tensors, splits, process_set), tensors, name)
    if splits is None:
        return [tensor for tensor, _ in results]
    return [_with_received_splits(*received) for received in results]


def grouped_alltoall_async(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[tuple[torch.Tensor, torch.Tensor]]:
    """splits: None, or those of each tensor. The results are pairs as of alltoall_async."""
    operations = _alltoall_of_each(tensors, splits, process_set)
    return start_batch(operations, tensors, name, _with_received_splits)


# size waiver: Horovod's arguments
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """A new tensor: this rank's share of the rows of what allreduce would give. The first ranks get
    one row more than the others if the rows cannot be shared out evenly."""
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start(operation, tensor, name, array_only)


# size waiver: Horovod's arguments
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run_each(operation, tensors, name, compression)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> BatchHandle[torch.Tensor]:
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start_batch(_for_each(operation, tensors), tensors, name, array_only)


def _for_each(operation: Operation, tensors: Sequence[torch.Tensor]) -> list[Operation]:
    return [operation] * len(arguments.batch(tensors))


def _alltoall_of_each(
    tensors: Sequence[torch.Tensor], splits: Sequence[Any] | None, process_set: Group
) -> list[Alltoall]:
    count = len(arguments.batch(tensors))
    each = [None] * count if splits is None else arguments.batch_splits(splits, count)
    return [Alltoall(process_set, of_one) for of_one in each]


def _with_received_splits(
    tensor: torch.Tensor, received_rows: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """int32, as Horovod has it, unless a number does not fit."""
    fits = max(received_rows) <= _INT32_MAX
    return tensor, torch.tensor(received_rows, dtype=torch.int32 if fits else torch.int64)


def _run(
    operation: Operation,
    tensor: torch.Tensor,
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> torch.Tensor:
    if compression is Compression.none:
        return run(operation, tensor, name)[0]
    sent, context = _compressed(compression, tensor)
    return compression.decompress(run(operation, sent, name)[0], context)


def _run_each(
    operation: Operation,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> list[torch.Tensor]:
    operations = _for_each(operation, tensors)
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
