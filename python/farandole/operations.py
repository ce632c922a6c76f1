"""One small class for each operation. The class makes the call, chooses the memory of the result,
and names the operation that computes the gradient.

An operation with its arguments is an object that can be started on any array, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from farandole import arguments, calls, core, lifecycle
from farandole.arguments import checked_scale_factor
from farandole.arrays import Array, Arrays, GradientArrays, Shape
from farandole.errors import CallError
from farandole.group import Group
from farandole.handle import BatchHandle, Handle, PreparedCall
from farandole.reduce_op import Average, AverageOfPresent, ReduceOp, Sum, checked_op

Result = TypeVar("Result")
# Makes the result of a call from the received array. If the shape of the array depends on the other
# members, the second argument has the number of rows from each member. Otherwise the second
# argument is empty.
FinishFunction = Callable[[Array, Sequence[int]], Result]


class Backward(NamedTuple):
    """How to compute the gradient of the input: run `operation` on `array`, and call `finish` with
    the result."""

    operation: Operation
    array: Array
    finish: Callable[[Array], Array]


class Operation:
    """One operation with its arguments. It can run on any array."""

    __slots__ = ()
    kind: ClassVar[str]  # the name of the operation
    group: Group

    def fields(self) -> dict[str, int | float]:
        """Return the fields that the operation sets in a Submission of the engine, except name,
        tensor and splits. Frameworks need these fields for programs that make the call later,
        without Python."""
        return {"group": arguments.group_number(self.group)}

    def check_differentiable(self) -> None:
        """Raise CallError if the operation is a reduction that has no derivative."""

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        raise NotImplementedError

    def target(self, arrays: Arrays, source: Array) -> Array | None:
        """Return an array for the result. Return None if the shape of the result depends on the
        other ranks; then the engine allocates its memory."""
        raise NotImplementedError

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        """Return how to compute the gradient of the input.

        Args:
            arrays: The frontend's functions on arrays.
            gradient: The gradient of the output.
            shape: The shape of the input.
            received_rows: The rows that the call has received from each member.

        Raises:
            CallError: There is no gradient.
        """
        raise CallError(f"the operation {type(self).__name__} has no gradient")

    def prepare(
        self, arrays: Arrays, array: Array, name: str, finish: FinishFunction[Result]
    ) -> PreparedCall[Result]:
        arrays.check(array)
        source = arrays.contiguous_on_host(array)
        target = self.target(arrays, source)
        view = arrays.view_of(array, source, target)

        def take_result(engine: core.Engine, number: int) -> Result:
            if target is None:
                memory, received_rows = engine.peek_received(number, view)
                return finish(arrays.on_device_of(array, arrays.from_engine(memory)), received_rows)
            engine.check_outcome(number)
            return finish(arrays.on_device_of(array, target), ())

        return PreparedCall(self.make_call(name, view), (source, target), take_result)


class _Reduction(Operation):
    __slots__ = ("group", "op", "postscale", "prescale")

    def __init__(
        self, group: Group, op: ReduceOp, prescale: float = 1.0, postscale: float = 1.0
    ) -> None:
        self.group = group
        self.op = op if type(op) is ReduceOp else checked_op(op)
        # Most factors are floats. A float needs no check, so skip the call of
        # checked_scale_factor().
        self.prescale = prescale if type(prescale) is float else checked_scale_factor(prescale)
        self.postscale = postscale if type(postscale) is float else checked_scale_factor(postscale)

    def fields(self) -> dict[str, int | float]:
        scales = {"prescale": self.prescale, "postscale": self.postscale}
        return super().fields() | {"reduce_op": int(self.op)} | scales

    def check_differentiable(self) -> None:
        if self.op not in (Sum, Average, AverageOfPresent):
            raise CallError(
                f"{self.kind} with op {self.op.name} has no gradient; Sum and Average have one"
            )


class Allreduce(_Reduction):
    kind = "allreduce"

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.allreduce(name, group, view, self.op, self.prescale, self.postscale)

    def target(self, arrays: Arrays, source: Array) -> Array:
        return arrays.empty_like(source)

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        return Backward(self, gradient, _return_unchanged)


@dataclass
class Broadcast(Operation):
    kind = "broadcast"
    group: Group
    root_rank: int

    def fields(self) -> dict[str, int | float]:
        return super().fields() | {"root_rank": arguments.checked_rank(self.root_rank)}

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.broadcast(name, group, view, arguments.checked_rank(self.root_rank))

    def target(self, arrays: Arrays, source: Array) -> Array:
        return arrays.empty_like(source)

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        finish = _return_unchanged if lifecycle.rank() == self.root_rank else arrays.zeros_like
        return Backward(_gradient_allreduce(arrays, self.group), gradient, finish)


@dataclass
class Allgather(Operation):
    kind = "allgather"
    group: Group

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        return core.allgather(name, arguments.group_number(self.group), view)

    def target(self, arrays: Arrays, source: Array) -> None:
        return None

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        member = self.group.rank()
        begin = sum(received_rows[:member])
        return Backward(
            _gradient_allreduce(arrays, self.group),
            gradient,
            lambda combined: combined[begin : begin + received_rows[member]],
        )


@dataclass
class Alltoall(Operation):
    kind = "alltoall"
    group: Group
    splits: Any

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        splits = arguments.checked_splits(self.splits)
        return core.alltoall(name, arguments.group_number(self.group), view, splits)

    def target(self, arrays: Arrays, source: Array) -> None:
        return None

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        def append_unsent_rows(sent: Array) -> Array:
            return arrays.padded_with_zeros(sent, shape[0])

        return Backward(Alltoall(self.group, received_rows), gradient, append_unsent_rows)


class Reducescatter(_Reduction):
    kind = "reducescatter"

    def make_call(self, name: str, view: core.BufferView) -> core.Call:
        group = arguments.group_number(self.group)
        return core.reducescatter(name, group, view, self.op, self.prescale, self.postscale)

    def target(self, arrays: Arrays, source: Array) -> Array:
        arguments.group_number(self.group)
        if len(source.shape) == 0:
            return arrays.empty_like(source)  # the engine will reject it: there are no rows
        rows = core.scattered_rows(len(source), self.group.size(), self.group.rank())
        return arrays.empty((rows, *source.shape[1:]), source.dtype)

    def backward(
        self, arrays: GradientArrays, gradient: Array, shape: Shape, received_rows: Sequence[int]
    ) -> Backward:
        if self.op not in (Sum, Average):
            raise CallError(
                f"a reducescatter with op {self.op.name} has no gradient; Sum and Average have one"
            )
        power = (not arrays.has_exact_gradients) - (self.op is Average)
        factor = self.prescale * self.postscale * float(self.group.size()) ** power
        return Backward(Allgather(self.group), gradient * factor, _return_unchanged)


def _gradient_allreduce(arrays: GradientArrays, group: Group) -> Allreduce:
    return Allreduce(group, Sum if arrays.has_exact_gradients else Average)


def _return_unchanged(array: Array) -> Array:
    return array


# An array, and how many rows of it came from each member.
ArrayAndRows = tuple[Array, Sequence[int]]


def return_array(array: Array, received_rows: Sequence[int]) -> Array:
    return array


def return_array_and_rows(array: Array, received_rows: Sequence[int]) -> ArrayAndRows:
    return array, received_rows


def start(
    arrays: Arrays,
    operation: Operation,
    array: Array,
    name: str | None,
    finish: FinishFunction[Result],
    blocking: bool = False,
) -> Handle[Result]:
    """Submit the operation on an array. farandole.calls.start() explains `blocking`."""
    prepared = operation.prepare(arrays, array, arguments.call_name(name), finish)
    return calls.start(prepared, blocking)


def start_batch(
    arrays: Arrays,
    operations: Sequence[Operation],
    inputs: Sequence[Array],
    name: str | None,
    finish: FinishFunction[Result],
    blocking: bool = False,
) -> BatchHandle[Result]:
    names = arguments.batch_names(name, len(inputs))
    batch = [
        operation.prepare(arrays, array, call_name, finish)
        for operation, array, call_name in zip(operations, inputs, names, strict=True)
    ]
    return calls.start_batch(batch, blocking)
