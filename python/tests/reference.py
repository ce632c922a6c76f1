"""The collective operations: their arguments, their results in NumPy, and differences between the
calls of ranks that must lead to errors.

All suites take the operations from OPERATIONS. Inputs are a function of the rank, so that every
worker knows the inputs of all ranks. The inputs are small whole numbers, so that sums are exact in
every dtype.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole import core, operations
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp, reduce_op_of

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

DTYPES = tuple(core.dtypes)
OPS = ("Sum", "Average", "Min", "Max", "Product")
UNSIGNED = ("bool", "uint8", "uint16")
SHAPES: tuple[Shape, ...] = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (40_000,))
RELATIVE_TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-7, "float64": 1e-15}
# Absolute tolerances for Adasum. If elements cancel each other out, the result may have a rounding
# error of float64 instead of 0. Near zero, float16 has few values.
ABSOLUTE_TOLERANCES = {"float16": 3e-8, "bfloat16": 1e-12, "float32": 1e-12, "float64": 1e-12}


@functools.lru_cache(maxsize=1000)
def input_of(rank: int, shape: Shape, dtype: str, seed: int = 0) -> Array:
    minimum, maximum = (0 if dtype in UNSIGNED else -3), (2 if dtype == "bool" else 4)
    return np.random.default_rng((seed, rank)).integers(minimum, maximum, shape)


def allreduce(
    inputs: Sequence[Array], op: str, dtype: str, scales: tuple[float, float] = (1, 1)
) -> Array:
    stacked = scaled(np.stack(inputs), scales[0], dtype)
    if op == "Adasum":
        result = adasum(stacked.astype(float))
    elif dtype == "bool":
        result = stacked.any(0) if op in ("Sum", "Max") else stacked.all(0)
    elif op == "Average":
        mean = stacked.sum(0) / len(inputs)
        result = mean if dtype in RELATIVE_TOLERANCES else np.trunc(mean)
    else:
        reduce = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op]
        result = reduce(stacked, axis=0)
    return scaled(result, scales[1], dtype)


def adasum(arrays: Array) -> Array:
    """Combine pairs of neighbours until one array is left. An array without a neighbour is kept for
    the next round."""
    while len(arrays) > 1:
        pairs = [adasum_of_two(*arrays[i : i + 2]) for i in range(0, len(arrays) - 1, 2)]
        arrays = np.stack([*pairs, *arrays[len(pairs) * 2 :]])
    return arrays[0]


def adasum_of_two(a: Array, b: Array) -> Array:
    dot_product = (a * b).sum()
    factor_a, factor_b = (
        1 - dot_product / square / 2 if (square := (x * x).sum()) else 1 for x in (a, b)
    )
    return factor_a * a + factor_b * b


def scaled(array: Array, factor: float, dtype: str) -> Array:
    if factor == 1:
        return array
    if dtype == "bool":
        return (array * factor).astype(bool)
    if dtype in RELATIVE_TOLERANCES:
        return array * factor
    limits = np.iinfo(dtype)
    return np.clip(np.trunc(array * factor), limits.min, limits.max)


def reducescatter(
    inputs: Sequence[Array],
    op: str,
    dtype: str,
    member: int,
    scales: tuple[float, float] = (1, 1),
) -> Array:
    return np.array_split(allreduce(inputs, op, dtype, scales), len(inputs))[member]


def alltoall(
    inputs: Sequence[Array], splits: Sequence[Sequence[int]], member: int
) -> tuple[Array, list[int]]:
    """Return the rows that the member receives, and the number of rows from each sender."""
    rows = [sender_splits[member] for sender_splits in splits]
    first_rows = [sum(sender_splits[:member]) for sender_splits in splits]
    parts = [
        array[begin : begin + count]
        for array, begin, count in zip(inputs, first_rows, rows, strict=True)
    ]
    return np.concatenate(parts), rows


@dataclass
class Call:
    """A call of a whole group on one or several tensors."""

    operation: Operation
    dtype: str
    shapes: Sequence[Shape]  # one for each tensor of the batch
    seed: int = 0
    op: str = "Sum"
    scales: tuple[float, float] = (1.0, 1.0)
    root: int = 0  # the member that sends
    splits: Sequence[Sequence[int]] = ()  # indexed by the sender, then by the receiver
    rows: Sequence[int] = ()  # each member's first dimension; if empty, as in `shapes`

    def member_shapes(self, member: int) -> list[Shape]:
        return [(self.rows[member], *s[1:]) if self.rows else s for s in self.shapes]

    def expected(self, member: int, ranks: Sequence[int]) -> list[Array]:
        """Return the results of a member, one for each tensor."""
        inputs = [
            [input_of(rank, shape, self.dtype, self.seed) for shape in self.member_shapes(m)]
            for m, rank in enumerate(ranks)
        ]
        return [self.operation.result(self, arrays, member) for arrays in zip(*inputs, strict=True)]

    @property
    def absolute_tolerance(self) -> float:
        return ABSOLUTE_TOLERANCES[self.dtype] if self.op == "Adasum" else 0


# The arguments of a call: shape, dtype and options.
Arguments = tuple[Shape, str, dict[str, Any]]


class Operation:
    """One collective operation."""

    name: str
    has_in_place = False  # whether there are forms that end in _
    has_rows = False  # whether first dimensions may differ
    returns_rows = False  # whether asynchronous calls return a pair: the result and received rows

    def make(self) -> operations.Operation:
        """Make the operation of farandole from a user's arguments, for the NumPy frontend."""
        raise NotImplementedError

    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        """Set the arguments of `call` that only this operation has to random values."""

    def options(self, call: Call, api: Any, member: int, ranks: Sequence[int]) -> dict[str, Any]:
        return {}

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        raise NotImplementedError

    def differences(self, api: Any, size: int) -> Iterator[tuple[list[str], Arguments, Arguments]]:
        """Yield triples: words that the error must contain, a valid call, and a different call of
        rank 0."""
        options = self.options(Call(self, "float32", ()), api, 0, range(size))
        shape = (size, 2) if self.has_rows else (4,)
        valid_arguments = (shape, "float32", options)
        if self.has_rows:
            yield ["[*, 3]", "[*, 2]"], valid_arguments, ((size, 3), "float32", options)
            yield ["[*]", "[*, 2]"], valid_arguments, ((size,), "float32", options)
        else:
            yield ["[5]", "[4]"], valid_arguments, ((5,), "float32", options)
            yield ["[2, 2]", "[4]"], valid_arguments, ((2, 2), "float32", options)
        yield ["float64", "float32"], valid_arguments, (shape, "float64", options)


class _Reduction(Operation):
    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        call.op = generator.choice([op for op in OPS if (call.dtype, op) != ("bool", "Average")])
        if call.op != "Product":
            call.scales = generator.choice(((1.0, 1.0), (2.0, 1.0), (1.0, 0.5)))

    def options(self, call: Call, api: Any, member: int, ranks: Sequence[int]) -> dict[str, Any]:
        prescale, postscale = call.scales
        return {
            "op": getattr(api, call.op),
            "prescale_factor": prescale,
            "postscale_factor": postscale,
        }

    def differences(self, api: Any, size: int) -> Iterator[tuple[list[str], Arguments, Arguments]]:
        yield from super().differences(api, size)
        valid_arguments: Arguments = ((4,), "float32", {"op": api.Sum})
        for word, different_options in (
            ("max", {"op": api.Max}),
            ("average", {"op": api.Average}),
        ):
            yield [word, "sum"], valid_arguments, ((4,), "float32", different_options)
        for scale in ("prescale", "postscale"):
            different_options = {"op": api.Sum, f"{scale}_factor": 0.125}
            yield [scale, "0.125", "1"], valid_arguments, ((4,), "float32", different_options)


class Allreduce(_Reduction):
    name, has_in_place = "allreduce", True

    def make(
        self,
        average: bool | None = None,
        op: ReduceOp | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Group = global_process_set,
    ) -> operations.Operation:
        op = reduce_op_of(op, average)
        return operations.Allreduce(process_set, op, prescale_factor, postscale_factor)

    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        super().draw(call, generator, members)
        if call.dtype in RELATIVE_TOLERANCES and generator.randrange(4) == 0:
            call.op = "Adasum"

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        return allreduce(inputs, call.op, call.dtype, call.scales)


class Reducescatter(_Reduction):
    name = "reducescatter"

    def make(
        self,
        op: ReduceOp = Average,
        process_set: Group = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> operations.Operation:
        return operations.Reducescatter(process_set, op, prescale_factor, postscale_factor)

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        return reducescatter(inputs, call.op, call.dtype, member, call.scales)


class Broadcast(Operation):
    name, has_in_place = "broadcast", True

    def make(self, root_rank: int, process_set: Group = global_process_set) -> operations.Operation:
        return operations.Broadcast(process_set, root_rank)

    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        call.root = generator.randrange(members)

    def options(self, call: Call, api: Any, member: int, ranks: Sequence[int]) -> dict[str, Any]:
        return {"root_rank": ranks[call.root]}

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        return inputs[call.root]

    def differences(self, api: Any, size: int) -> Iterator[tuple[list[str], Arguments, Arguments]]:
        yield from super().differences(api, size)
        valid_arguments, different_arguments = (
            ((4,), "float32", {"root_rank": root}) for root in (0, 1)
        )
        yield ["root rank", "1", "0"], valid_arguments, different_arguments


class Allgather(Operation):
    name, has_rows = "allgather", True

    def make(self, process_set: Group = global_process_set) -> operations.Operation:
        return operations.Allgather(process_set)

    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        call.rows = [generator.randrange(5) for _ in range(members)]

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        return np.concatenate(inputs)


class Alltoall(Operation):
    name, has_rows, returns_rows = "alltoall", True, True

    def make(
        self, splits: Any = None, process_set: Group = global_process_set
    ) -> operations.Operation:
        return operations.Alltoall(process_set, splits)

    def draw(self, call: Call, generator: random.Random, members: int) -> None:
        call.splits = [[generator.randrange(4) for _ in range(members)] for _ in range(members)]
        call.rows = [sum(splits) + generator.randrange(2) for splits in call.splits]

    def options(self, call: Call, api: Any, member: int, ranks: Sequence[int]) -> dict[str, Any]:
        return {"splits": list(call.splits[member])} if call.splits else {}

    def result(self, call: Call, inputs: Sequence[Array], member: int) -> Array:
        return alltoall(inputs, call.splits, member)[0]


OPERATIONS = {
    operation.name: operation
    for operation in (Allreduce(), Broadcast(), Reducescatter(), Allgather(), Alltoall())
}


def random_call(
    generator: random.Random, operation: Operation, dtype: str, tensors: int, members: int
) -> Call:
    shapes = [
        tuple(generator.choice((0, 1, 2, 5, 33)) for _ in range(generator.randint(1, 3)))
        for _ in range(tensors)
    ]
    call = Call(operation, dtype, shapes, generator.randrange(1000))
    operation.draw(call, generator, members)
    return call
