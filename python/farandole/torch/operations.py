"""Collective calls on torch tensors that wait for their result.

Every call must be made by all members of its process_set, with the same name if one is given. New
tensors that come from ones with a gradient have one, too: backward() then makes calls of its own,
so it must run on all members.
"""

from __future__ import annotations

from typing import Any

import torch

from farandole import lifecycle
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp, Sum, chosen
from farandole.torch.asynchronous import (
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    start_allgather,
)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the elementwise Average (or another op) over all ranks."""
    result: torch.Tensor = _Allreduce.apply(tensor, name, chosen(op, average), process_set)
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like allreduce, with the result in the tensor itself, unnoticed by its gradient."""
    return allreduce_async_(tensor, average, name, op=op, process_set=process_set).wait()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the one of root_rank, a rank of the world that is in the process_set."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like broadcast, with the result in the tensor itself, unnoticed by its gradient."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, one after another along the first dimension, which may differ."""
    result: torch.Tensor = _Allgather.apply(tensor, name, process_set)
    return result


def _of_gradient(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, group: Group
    ) -> torch.Tensor:
        ctx.call = name, op, group
        return allreduce_async(tensor, name=name, op=op, process_set=group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, group = ctx.call
        if op not in (Sum, Average):
            raise CallError(f"allreduce with op {op.name} has no gradient; Sum and Average have")
        result = allreduce(gradients[0], name=_of_gradient(name), op=op, process_set=group)
        return result, None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, group: Group
    ) -> torch.Tensor:
        ctx.call = root_rank, name, group
        return broadcast_async(tensor, root_rank, name, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, name, group = ctx.call
        mean = allreduce(gradients[0], name=_of_gradient(name), process_set=group)
        result = mean if lifecycle.rank() == root_rank else torch.zeros_like(mean)
        return result, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, group: Group) -> torch.Tensor:
        gathered, rows = start_allgather(tensor, name, group, lambda *both: both).wait()
        mine = group.rank()
        ctx.call = name, group, sum(rows[:mine]), rows[mine]
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, group, first, rows = ctx.call
        mean = allreduce(gradients[0], name=_of_gradient(name), process_set=group)
        return mean[first : first + rows], None, None
