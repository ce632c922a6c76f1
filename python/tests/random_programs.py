"""Random programs: all ranks make the same asynchronous calls.

Each rank submits them in a random order of its own, and waits for them in another one. One seed
makes one program.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
from reference import EPSILON, NEAR_ZERO, OPS, Array, Shape, input_of
from suite import Form, Frontend, Suite, forms_of, needs_async

PROGRAMS, CALLS = 12, 40


@dataclass
class Call:
    """A call of a program; wanted() returns its result on a member of its group."""

    name: str
    operation: str
    form: Form
    group: int  # 0: the world
    dtype: str
    shapes: list[Shape]  # one for each tensor of the batch
    seed: int
    op: str = ""
    scales: tuple[float, float] = (1.0, 1.0)
    root: int = 0  # a member
    splits: Sequence[Sequence[int]] = ()  # by sender, then by receiver
    rows: Sequence[int] = ()  # how many each member's tensors have; if empty, as in `shapes`

    def shape(self, index: int, member: int) -> Shape:
        shape = self.shapes[index]
        return (self.rows[member], *shape[1:]) if self.rows else shape

    def inputs(self, index: int, ranks: Sequence[int]) -> list[Array]:
        return [
            input_of(rank, self.shape(index, member), self.dtype, self.seed)
            for member, rank in enumerate(ranks)
        ]

    def arguments(self, api: Any, member: int, ranks: Sequence[int]) -> dict[str, Any]:
        if self.operation == "broadcast":
            return {"root_rank": ranks[self.root]}
        if self.operation == "alltoall":
            mine = list(self.splits[member])
            return {"splits": [mine] * len(self.shapes) if self.form.grouped else mine}
        if self.operation == "allgather":
            return {}
        prescale, postscale = self.scales
        return {
            "op": getattr(api, self.op),
            "prescale_factor": prescale,
            "postscale_factor": postscale,
        }

    def wanted(self, index: int, member: int, ranks: Sequence[int]) -> Array:
        inputs = self.inputs(index, ranks)
        if self.operation == "allreduce":
            return reference.allreduce(inputs, self.op, self.dtype, self.scales)
        if self.operation == "reducescatter":
            return reference.reducescatter(inputs, self.op, self.dtype, member, self.scales)
        if self.operation == "broadcast":
            return inputs[self.root]
        if self.operation == "allgather":
            return np.concatenate(inputs)
        return reference.alltoall(inputs, self.splits, member)[0]


def random_shape(generator: random.Random) -> Shape:
    return tuple(generator.choice((0, 1, 2, 5, 33)) for _ in range(generator.randint(1, 3)))


def random_call(
    generator: random.Random, number: int, sizes: Sequence[int], frontend: Frontend
) -> Call:
    operation = generator.choice(
        ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
    )
    forms = forms_of(operation, frontend)
    form = generator.choice([form for form in forms if form.asynchronous])
    group = generator.randrange(len(sizes))
    call = Call(
        f"call.{number}",
        operation,
        form,
        group,
        generator.choice(frontend.dtypes),
        [random_shape(generator) for _ in range(generator.randint(1, 4) if form.grouped else 1)],
        generator.randrange(1000),
    )
    members = range(sizes[group])
    call.op = generator.choice([op for op in OPS if (call.dtype, op) != ("bool", "Average")])
    if operation == "allreduce" and call.dtype in EPSILON and generator.randrange(4) == 0:
        call.op = "Adasum"
    if call.op != "Product":
        call.scales = generator.choice(((1.0, 1.0), (2.0, 1.0), (1.0, 0.5)))
    call.root = generator.randrange(sizes[group])
    if operation == "allgather":
        call.rows = [generator.randrange(5) for _ in members]
    if operation == "alltoall":
        call.splits = [[generator.randrange(4) for _ in members] for _ in members]
        call.rows = [sum(splits) + generator.randrange(2) for splits in call.splits]
    return call


class RandomPrograms(Suite):
    @needs_async
    def check_random_programs(self) -> None:
        for seed in range(PROGRAMS):
            try:
                self.run_program(seed)
            except BaseException:
                print(f"the random program with seed {seed} has failed", flush=True)
                raise

    def run_program(self, seed: int) -> None:
        groups = [self.api.global_process_set, *self.groups]
        generator = random.Random(seed)
        sizes = [group.size() for group in groups]
        program = [random_call(generator, number, sizes, self.frontend) for number in range(CALLS)]
        mine = [call for call in program if groups[call.group].included()]
        own_order = random.Random(1000 * seed + self.rank)
        own_order.shuffle(mine)
        started = [
            (call, groups[call.group], self.start(call, groups[call.group])) for call in mine
        ]
        own_order.shuffle(started)
        for call, group, handle in started:
            results = self.api.synchronize(handle)
            for index, result in enumerate(results if call.form.grouped else [results]):
                tensor = result[0] if call.operation == "alltoall" else result
                wanted = call.wanted(index, group.rank(), group.ranks)
                near_zero = NEAR_ZERO[call.dtype] if call.op == "Adasum" else 0
                self.expect(tensor, wanted, call.dtype, exact=False, absolute=near_zero)

    def start(self, call: Call, group: Any) -> Any:
        member = group.rank()
        tensors = [
            self.tensor(call.shape(index, member), call.dtype, call.seed)
            for index in range(len(call.shapes))
        ]
        arguments = call.arguments(self.api, member, group.ranks)
        function = getattr(self.api, call.form.name(call.operation))
        given = tensors if call.form.grouped else tensors[0]
        return function(given, name=call.name, process_set=group, **arguments)
