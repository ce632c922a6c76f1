"""Collective calls on torch tensors that return at once.

They give a handle; until `synchronize` has returned, leave the tensors alone. Calls on tensors of
any strides work; one that is not contiguous costs a copy. Results carry no gradient. A grouped call
starts all its tensors or, on an error, none, and its result is the list of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole import arguments
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle, Handle
from farandole.reduce_op import Average, ReduceOp, chosen
from farandole.torch.collectives import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Collective,
    Reducescatter,
    start,
    start_batch,
    start_batch_in_place,
    start_in_place,
    tensor_only,
)


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
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start(call, tensor, name, tensor_only)


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
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_in_place(call, tensor, name)


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
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_batch(for_each(call, tensors), tensors, name, tensor_only)


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
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return start_batch_in_place(call, tensors, name)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return start(Broadcast(process_set, root_rank), tensor, name, tensor_only)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return start_in_place(Broadcast(process_set, root_rank), tensor, name)


def grouped_broadcast_async(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    calls = for_each(Broadcast(process_set, root_rank), tensors)
    return start_batch(calls, tensors, name, tensor_only)


def grouped_broadcast_async_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    return start_batch_in_place(Broadcast(process_set, root_rank), tensors, name)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> Handle[torch.Tensor]:
    return start(Allgather(process_set), tensor, name, tensor_only)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[torch.Tensor]:
    calls = for_each(Allgather(process_set), tensors)
    return start_batch(calls, tensors, name, tensor_only)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """The result is the pair of received tensor and received_splits, also without splits."""
    return start(Alltoall(process_set, splits), tensor, name, with_received_splits)


def grouped_alltoall_async(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> BatchHandle[tuple[torch.Tensor, torch.Tensor]]:
    """splits: None, or those of each tensor. The results are pairs as of alltoall_async."""
    calls = alltoall_of_each(tensors, splits, process_set)
    return start_batch(calls, tensors, name, with_received_splits)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    call = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start(call, tensor, name, tensor_only)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> BatchHandle[torch.Tensor]:
    call = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return start_batch(for_each(call, tensors), tensors, name, tensor_only)


def for_each(call: Collective, tensors: Sequence[torch.Tensor]) -> list[Collective]:
    return [call] * len(arguments.batch(tensors))


def alltoall_of_each(
    tensors: Sequence[torch.Tensor], splits: Sequence[Any] | None, process_set: Group
) -> list[Alltoall]:
    count = len(arguments.batch(tensors))
    each = [None] * count if splits is None else arguments.batch_splits(splits, count)
    return [Alltoall(process_set, of_one) for of_one in each]


def with_received_splits(
    tensor: torch.Tensor, received_rows: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, torch.tensor(received_rows, dtype=torch.int64)
