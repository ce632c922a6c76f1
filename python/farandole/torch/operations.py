"""The collective calls on torch tensors.

Every call must be made by all members of its process_set, with the same name if one is given. The
async forms return a Handle at once; until `synchronize` has returned, leave the tensor alone. Calls
on tensors of any strides work; one that is not contiguous costs a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd.graph import increment_version

from farandole import core, lifecycle
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.handle import Handle
from farandole.reduce_op import ReduceOp
from farandole.torch.tensors import check, check_writable, view_of

Result = TypeVar("Result")


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the elementwise Average (or another op) over all ranks."""
    return allreduce_async(tensor, average, name, op=op, process_set=process_set).wait()


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    check(tensor)
    source = tensor.detach().contiguous()
    target = torch.empty_like(source)
    start = _allreduce(name, process_set, _chosen(op, average))
    return _start(start, source, target, lambda: target)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like allreduce, with the result in the tensor itself."""
    return allreduce_async_(tensor, average, name, op=op, process_set=process_set).wait()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_in_place(_allreduce(name, process_set, _chosen(op, average)), tensor)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """A new tensor: the one of root_rank, a rank of the world that is in the process_set."""
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    check(tensor)
    source = tensor.detach().contiguous()
    target = torch.empty_like(source)
    return _start(_broadcast(name, process_set, root_rank), source, target, lambda: target)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> torch.Tensor:
    """Like broadcast, with the result in the tensor itself."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Handle[torch.Tensor]:
    return _start_in_place(_broadcast(name, process_set, root_rank), tensor)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, one after another along the first dimension, which may differ."""
    return allgather_async(tensor, name, process_set).wait()


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Group = global_process_set
) -> Handle[torch.Tensor]:
    check(tensor)
    source = tensor.detach().contiguous()
    engine, group, view = lifecycle.engine(), process_set.number(), view_of(source)

    def finish(engine: core.Engine, number: int) -> torch.Tensor:
        gathered, _ = engine.take_gathered(number, view)
        return torch.from_dlpack(gathered)

    return Handle(engine, engine.allgather(name or "", group, view), source, finish)


def barrier(process_set: Group = global_process_set) -> None:
    """Returns when all members have called it."""
    engine = lifecycle.engine()
    number = engine.barrier("", process_set.number())
    Handle(engine, number, None, core.Engine.take).wait()


def poll(handle: Handle[Result]) -> bool:
    """Is the call done? Then synchronize returns at once."""
    return handle.poll()


def synchronize(handle: Handle[Result]) -> Result:
    """Waits for the call and returns its tensor, or raises what went wrong."""
    return handle.wait()


# Submits a call on a view; returns the engine's number for it.
_Start = Callable[[core.Engine, core.BufferView], int]


def _chosen(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    if op is None:
        return ReduceOp.Sum if average is False else ReduceOp.Average
    if average is not None:
        raise CallError("give either op or the older average, not both")
    return ReduceOp(op)


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
