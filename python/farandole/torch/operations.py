"""Collective calls on torch tensors that wait for their result.

Every call must be made by all members of its process_set, with the same name if one is given. New
tensors that come from ones with a gradient have one, too: backward() then makes calls of its own,
so it must run on all members. A grouped call does to each tensor of a list what the plain one does,
and returns the list of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp, chosen
from farandole.torch.asynchronous import (
    allreduce_async_,
    alltoall_of_each,
    broadcast_async_,
    for_each,
    grouped_allreduce_async_,
    grouped_broadcast_async_,
    with_received_splits,
)
from farandole.torch.collectives import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Collective,
    Reducescatter,
)
from farandole.torch.differentiable import run, run_batch


# size waiver: Horovod's arguments
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: postscale_factor × the elementwise Average (or another op) over all ranks of
    prescale_factor × tensor."""
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return run(call, tensor, name)[0]


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
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


# size waiver: Horovod's arguments
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    call = Allreduce(process_set, chosen(op, average), prescale_factor, postscale_factor)
    return _run_each(call, tensors, name)


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
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the one of root_rank, a rank of the world that is in the process_set."""
    return run(Broadcast(process_set, root_rank), tensor, name)[0]


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like broadcast, with the result in the tensor itself, unnoticed by its gradient."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def grouped_broadcast(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    return _run_each(Broadcast(process_set, root_rank), tensors, name)


def grouped_broadcast_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    return grouped_broadcast_async_(tensors, root_rank, name, process_set).wait()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, one after another along the first dimension, which may differ."""
    return run(Allgather(process_set), tensor, name)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor]:
    return _run_each(Allgather(process_set), tensors, name)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends each member some rows of the tensor, and returns what came from them, in their order.

    splits: how many rows each member gets, as a list or tensor; None: all the same number. With
    splits the result is a pair: the tensor, and how many rows came from each member.
    """
    received = run(Alltoall(process_set, splits), tensor, name)
    return received[0] if splits is None else with_received_splits(*received)


def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[torch.Tensor] | list[tuple[torch.Tensor, torch.Tensor]]:
    """splits: None, or those of each tensor. The results are as those of alltoall."""
    results = run_batch(alltoall_of_each(tensors, splits, process_set), tensors, name)
    if splits is None:
        return [tensor for tensor, _ in results]
    return [with_received_splits(*received) for received in results]


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """A new tensor: this rank's share of the rows of what allreduce would give. The first ranks get
    one row more than the others if the rows cannot be shared out evenly."""
    return run(Reducescatter(process_set, op, prescale_factor, postscale_factor), tensor, name)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    call = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run_each(call, tensors, name)


def _run_each(
    call: Collective, tensors: Sequence[torch.Tensor], name: str | None
) -> list[torch.Tensor]:
    return [tensor for tensor, _ in run_batch(for_each(call, tensors), tensors, name)]
