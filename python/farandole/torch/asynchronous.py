"""Collective calls on torch tensors that return at once.

They give a Handle; until `synchronize` has returned, leave the tensor alone. Calls on tensors of
any strides work; one that is not contiguous costs a copy. Results carry no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd.graph import increment_version

from farandole import core, lifecycle
from farandole.group import Group, global_process_set
from farandole.handle import Handle
from farandole.reduce_op import ReduceOp, chosen
from farandole.torch.tensors import check, check_writable, view_of

Result = TypeVar("Result")


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_out_of_place(_allreduce(name, process_set, chosen(op, average)), tensor)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_in_place(_allreduce(name, process_set, chosen(op, average)), tensor)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_out_of_place(_broadcast(name, process_set, root_rank), tensor)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_in_place(_broadcast(name, process_set, root_rank), tensor)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> Handle[torch.Tensor]:
    return start_allgather(tensor, name, process_set, lambda gathered, _: gathered)


def start_allgather(
    tensor: torch.Tensor,
    name: str | None,
    process_set: Group,
    result: Callable[[torch.Tensor, list[int]], Result],
) -> Handle[Result]:
    """An allgather whose result may use how many rows each member gave."""
    check(tensor)
    source = tensor.detach().contiguous()
    engine, group, view = lifecycle.engine(), process_set.number(), view_of(source)

    def finish(engine: core.Engine, number: int) -> Result:
        gathered, rows = engine.take_gathered(number, view)
        return result(torch.from_dlpack(gathered), rows)

    return Handle(engine, engine.allgather(name or "", group, view), source, finish)


# Submits a call on a view; returns the engine's number for it.
_Start = Callable[[core.Engine, core.BufferView], int]


def _allreduce(name: str | None, process_set: Group, op: ReduceOp) -> _Start:
    return lambda engine, view: engine.allreduce(name or "", process_set.number(), view, op)


def _broadcast(name: str | None, process_set: Group, root_rank: int) -> _Start:
    return lambda engine, view: engine.broadcast(name or "", process_set.number(), view, root_rank)


def _start(
    start: _Start, source: torch.Tensor, target: torch.Tensor, result: Callable[[], torch.Tensor]
) -> Handle[torch.Tensor]:
    def finish(engine: core.Engine, number: int) -> torch.Tensor:
        engine.take(number)
        return result()

    engine = lifecycle.engine()
    number = start(engine, view_of(source, target))
    return Handle(engine, number, (source, target), finish)


def _start_out_of_place(start: _Start, tensor: torch.Tensor) -> Handle[torch.Tensor]:
    check(tensor)
    source = tensor.detach().contiguous()
    target = torch.empty_like(source)
    return _start(start, source, target, lambda: target)


def _start_in_place(start: _Start, tensor: torch.Tensor) -> Handle[torch.Tensor]:
    check_writable(tensor)
    memory = tensor.detach()
    dense = memory.contiguous()

    def result() -> torch.Tensor:
        if dense is not memory:
            memory.copy_(dense)  # also tells autograd
        return tensor

    handle = _start(start, dense, dense, result)
    if not tensor.is_inference():
        increment_version(tensor)
    return handle
