"""Start operations on torch tensors: with a new result, in place, or with a gradient.

One autograd function serves all operations. Its backward() runs the operations that
Operation.backward() returns: as a batch if forward() ran a batch, otherwise a single one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from farandole import arguments, calls, core, operations
from farandole.handle import BatchHandle, Handle, PreparedCall
from farandole.operations import ArrayAndRows, Operation, return_array_and_rows
from farandole.torch import tensors as torch_tensors
from farandole.torch.tensors import (
    check_no_overlap,
    check_writable,
    contiguous_on_host,
    direct_view,
    view_of,
)

start = functools.partial(operations.start, torch_tensors)
start_batch = functools.partial(operations.start_batch, torch_tensors)


class _InPlaceCall(PreparedCall[torch.Tensor]):
    """A call that writes into its tensor. Its `finish` is a method and not a closure, because
    making a closure costs time."""

    __slots__ = ("in_place", "memory", "tensor")

    def __init__(self, call: core.Call, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        self.call = call
        self.tensor = tensor
        self.memory = memory
        self.in_place = tensor if memory is tensor else None

    def finish(self, engine: core.Engine, handle: int) -> torch.Tensor:
        engine.check_call_outcome(self.call)
        return _with_result(self.tensor, self.memory)


def _with_result(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return the tensor, with the result that a call has written into `memory`."""
    if memory is not tensor:
        tensor.detach().copy_(memory)  # with copy_(), autograd counts the write
    return tensor


def _borrow_for_writing(tensor: torch.Tensor) -> tuple[torch.Tensor, core.BufferView]:
    """Return the memory that an in-place call works on, and a view of that memory. The memory is
    the tensor itself or, if the engine cannot use it, a copy."""
    view = direct_view(tensor)
    if view is not None:
        return tensor, view
    check_writable(tensor)
    memory = contiguous_on_host(tensor)
    return memory, view_of(tensor, memory, memory)


def _prepare_in_place(
    operation: Operation, tensor: torch.Tensor, name: str
) -> PreparedCall[torch.Tensor]:
    memory, view = _borrow_for_writing(tensor)
    return _InPlaceCall(operation.make_call(name, view), tensor, memory)


def run_in_place(operation: Operation, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """Run a call that writes its result into the tensor, and return the tensor."""
    memory, view = _borrow_for_writing(tensor)
    call = operation.make_call(arguments.call_name(name), view)
    try:
        calls.run(call, memory)
    finally:
        _count_write(tensor)  # a failed call may have written to the tensor, too
    return _with_result(tensor, memory)


def start_in_place(
    operation: Operation, tensor: torch.Tensor, name: str | None, blocking: bool = False
) -> Handle[torch.Tensor]:
    """Submit a call that writes its result into the tensor. farandole.calls.start() explains
    `blocking`."""
    handle = calls.start(_prepare_in_place(operation, tensor, arguments.call_name(name)), blocking)
    _count_write(tensor)
    return handle


def start_batch_in_place(
    operation: Operation,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    blocking: bool = False,
) -> BatchHandle[torch.Tensor]:
    names = arguments.batch_names(name, len(arguments.checked_batch(tensors)))
    pairs = zip(tensors, names, strict=True)
    prepared_calls = [_prepare_in_place(operation, *pair) for pair in pairs]
    check_no_overlap(tensors)
    handle = calls.start_batch(prepared_calls, blocking)
    for tensor in tensors:
        _count_write(tensor)
    return handle


def _count_write(tensor: torch.Tensor) -> None:
    """Let autograd count a write to the tensor, so that autograd can detect stale values."""
    try:
        increment_version(tensor)
    except RuntimeError:
        # Inference tensors have no count. Testing for them before each write would cost time.
        if not tensor.is_inference():
            raise


def run(operation: Operation, tensor: torch.Tensor, name: str | None) -> ArrayAndRows:
    """Run the operation and return its result. If the tensor requires a gradient, so does the
    result."""
    if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
        return _run_with_gradients([operation], [tensor], name, is_batch=False)[0]
    return start(operation, tensor, name, return_array_and_rows, blocking=True).wait()


def run_batch(
    operations: Sequence[Operation], tensors: Sequence[torch.Tensor], name: str | None
) -> list[ArrayAndRows]:
    if torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors):
        return _run_with_gradients(operations, tensors, name, is_batch=True)
    return start_batch(operations, tensors, name, return_array_and_rows, blocking=True).wait()


def _run_with_gradients(
    operations: Sequence[Operation],
    tensors: Sequence[torch.Tensor],
    name: str | None,
    is_batch: bool,
) -> list[ArrayAndRows]:
    *outputs, received = _DifferentiableOperations.apply(operations, name, is_batch, *tensors)
    return list(zip(outputs, received, strict=True))


class _DifferentiableOperations(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        operations: Sequence[Operation],
        name: str | None,
        is_batch: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        if is_batch:
            results = run_batch(operations, tensors, name)
        else:
            results = [run(operations[0], tensors[0], name)]
        ctx.operations, ctx.name, ctx.is_batch = operations, name, is_batch
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.received = [received_rows for _, received_rows in results]
        return *(tensor for tensor, _ in results), ctx.received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # Compute the gradient of every input that can have one, because another rank may need the
        # gradient of the same input. The last of `gradients` is unused, because it belongs to the
        # last output, ctx.received.
        differentiable_indices = [i for i, g in enumerate(gradients[:-1]) if g.is_floating_point()]
        backward_calls = [
            ctx.operations[i].backward(torch_tensors, gradients[i], ctx.shapes[i], ctx.received[i])
            for i in differentiable_indices
        ]
        name = arguments.gradient_name(ctx.name)
        if ctx.is_batch:
            operations = [backward_call.operation for backward_call in backward_calls]
            results = run_batch(
                operations, [backward_call.array for backward_call in backward_calls], name
            )
        else:
            results = [run(backward_calls[0].operation, backward_calls[0].array, name)]
        input_gradients: list[torch.Tensor | None] = [None] * len(ctx.shapes)
        for i, backward_call, (tensor, _) in zip(
            differentiable_indices, backward_calls, results, strict=True
        ):
            input_gradients[i] = backward_call.finish(tensor)
        return None, None, None, *input_gradients
