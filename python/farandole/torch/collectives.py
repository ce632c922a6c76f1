"""The collective operations on torch tensors, one small class each: how its call is made, where its
result goes, and which operation its gradient needs.

operations.py starts them, alone or in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch.autograd.graph import increment_version

from farandole import arguments, calls, core, lifecycle
from farandole.errors import CallError
from farandole.group import Group
from farandole.handle import BatchHandle, Handle, PreparedCall
from farandole.reduce_op import Average, ReduceOp, Sum, checked
from farandole.torch.tensors import check, check_writable, dense, returned, view_of

Result = TypeVar("Result")
# Makes the result of a call from its tensor and, of operations whose output depends on what the
# others bring, how many rows came from each member.
Finish = Callable[[torch.Tensor, Sequence[int]], Result]


class Backward(NamedTuple):
    """The call that makes the gradient of the input from that of the output."""

    collective: Collective
    tensor: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]


class Collective:
    """One operation with its arguments, to be run on any tensor."""

    __slots__ = ()
    group: Group

    def call(self, name: str, view: core.BufferView) -> core.Call:
        raise NotImplementedError

    def target(self, source: torch.Tensor) -> torch.Tensor | None:
        """Where the result goes; None: its size is not known yet, so into memory of the engine."""
        raise NotImplementedError

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        """`shape` is that of the input, `received_rows` is what the call itself received."""
        raise NotImplementedError


class _Reduction(Collective):
    __slots__ = ("group", "op", "postscale", "prescale")

    def __init__(self, group: Group, op: ReduceOp, prescale: float, postscale: float) -> None:
        self.group = group
        self.op = checked(op)
        self.prescale = arguments.scale_factor(prescale)
        self.postscale = arguments.scale_factor(postscale)


class Allreduce(_Reduction):
    def call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.allreduce(name, group, view, self.op, self.prescale, self.postscale)

    def target(self, source: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(source)

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        return Backward(self, gradient, _unchanged)


@dataclass
class Broadcast(Collective):
    group: Group
    root_rank: int

    def call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.broadcast(name, group, view, arguments.rank_number(self.root_rank))

    def target(self, source: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(source)

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        root = lifecycle.rank() == self.root_rank
        return Backward(_mean(self.group), gradient, _unchanged if root else torch.zeros_like)


@dataclass
class Allgather(Collective):
    group: Group

    def call(self, name: str, view: core.BufferView) -> core.Call:
        return core.allgather(name, arguments.group_number(self.group), view)

    def target(self, source: torch.Tensor) -> None:
        return None

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        mine = self.group.rank()
        first = sum(received_rows[:mine])
        return Backward(
            _mean(self.group), gradient, lambda mean: mean[first : first + received_rows[mine]]
        )


@dataclass
class Alltoall(Collective):
    group: Group
    splits: Any

    def call(self, name: str, view: core.BufferView) -> core.Call:
        splits = arguments.split_sizes(self.splits)
        return core.alltoall(name, arguments.group_number(self.group), view, splits)

    def target(self, source: torch.Tensor) -> None:
        return None

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        def with_rows_that_were_not_sent(sent: torch.Tensor) -> torch.Tensor:
            return torch.cat((sent, sent.new_zeros((shape[0] - len(sent), *shape[1:]))))

        return Backward(Alltoall(self.group, received_rows), gradient, with_rows_that_were_not_sent)


class Reducescatter(_Reduction):
    def call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.reducescatter(name, group, view, self.op, self.prescale, self.postscale)

    def target(self, source: torch.Tensor) -> torch.Tensor:
        arguments.group_number(self.group)
        if source.dim() == 0:
            return torch.empty_like(source)  # the engine says what is wrong
        rows = core.scattered_rows(source.shape[0], self.group.size(), self.group.rank())
        return source.new_empty((rows, *source.shape[1:]))

    def backward(
        self, gradient: torch.Tensor, shape: torch.Size, received_rows: Sequence[int]
    ) -> Backward:
        if self.op not in (Sum, Average):
            raise CallError(
                f"a reducescatter with op {self.op.name} has no gradient; Sum and Average have one"
            )
        factor = self.prescale * self.postscale * (self.group.size() if self.op is Sum else 1)
        return Backward(Allgather(self.group), gradient * factor, _unchanged)


def _mean(group: Group) -> Allreduce:
    return Allreduce(group, Average, 1.0, 1.0)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def tensor_only(tensor: torch.Tensor, received_rows: Sequence[int]) -> torch.Tensor:
    return tensor


def _prepare(
    collective: Collective, tensor: torch.Tensor, name: str, finish: Finish[Result]
) -> PreparedCall[Result]:
    check(tensor)
    source = dense(tensor)
    target = collective.target(source)
    view = view_of(tensor, source, target)

    def take(engine: core.Engine, number: int) -> Result:
        if target is None:
            array, received_rows = engine.peek_received(number, view)
            return finish(returned(torch.from_dlpack(array), tensor), received_rows)
        engine.peek(number)
        return finish(returned(target, tensor), ())

    return PreparedCall(collective.call(name, view), (source, target), take)


class _InPlace(PreparedCall[torch.Tensor]):
    """No closure: of the calls of a training step, each object costs time."""

    __slots__ = ("memory", "tensor")

    def __init__(self, call: core.Call, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        self.call = call
        self.tensor = tensor
        self.memory = memory

    def finish(self, engine: core.Engine, number: int) -> torch.Tensor:
        engine.peek(number)
        if self.memory is not self.tensor:
            self.tensor.detach().copy_(self.memory)  # also tells autograd
        return self.tensor


def _prepare_in_place(
    collective: Collective, tensor: torch.Tensor, name: str
) -> PreparedCall[torch.Tensor]:
    check_writable(tensor)
    memory = dense(tensor)
    return _InPlace(collective.call(name, view_of(tensor, memory, memory)), tensor, memory)


def start(
    collective: Collective,
    tensor: torch.Tensor,
    name: str | None,
    finish: Finish[Result],
    waits: bool = False,
) -> Handle[Result]:
    """`waits`, here and below: see farandole.calls."""
    return calls.start(_prepare(collective, tensor, arguments.call_name(name), finish), waits)


def start_batch(
    collectives: Sequence[Collective],
    tensors: Sequence[torch.Tensor],
    name: str | None,
    finish: Finish[Result],
    waits: bool = False,
) -> BatchHandle[Result]:
    names = arguments.member_names(name, len(tensors))
    return calls.start_batch(
        [_prepare(*call, finish) for call in zip(collectives, tensors, names, strict=True)], waits
    )


def start_in_place(
    collective: Collective, tensor: torch.Tensor, name: str | None, waits: bool = False
) -> Handle[torch.Tensor]:
    handle = calls.start(_prepare_in_place(collective, tensor, arguments.call_name(name)), waits)
    _tell_autograd(tensor)
    return handle


def start_batch_in_place(
    collective: Collective,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    waits: bool = False,
) -> BatchHandle[torch.Tensor]:
    names = arguments.member_names(name, len(arguments.batch(tensors)))
    pairs = zip(tensors, names, strict=True)
    handle = calls.start_batch([_prepare_in_place(collective, *pair) for pair in pairs], waits)
    for tensor in tensors:
        _tell_autograd(tensor)
    return handle


def _tell_autograd(changed: torch.Tensor) -> None:
    if not changed.is_inference():
        increment_version(changed)
