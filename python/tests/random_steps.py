"""The steps of random programs: calls with random arguments, and their results by NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import reference
from reference import Array, Shape

StepT = TypeVar("StepT", bound="Step")

_DTYPES = ("float32", "int32", "float64", "bfloat16")


@dataclass
class Step:
    """One call of a random program, and the context in which the program makes the call. Each
    frontend derives a class that makes the call."""

    operation: str
    op: str
    group: Any
    shape: Shape
    dtype: str
    context: str
    root: int

    @classmethod
    def draw(
        cls: type[StepT], generator: random.Random, groups: Sequence[Any], context: Sequence[str]
    ) -> StepT:
        """Return a random step. To get the same step, all ranks must use equal generators."""
        group = generator.choice(groups)
        operation = generator.choice(
            ["allreduce", "allreduce", "reducescatter", "broadcast", "allgather", "alltoall"]
        )
        rows = generator.choice([1, 2, 3]) * len(group.ranks)
        return cls(
            operation,
            generator.choice(["Sum", "Min", "Max"] if generator.random() < 0.5 else ["Sum"]),
            group,
            generator.choice([(rows,), (rows, 3), (rows, 2, 2), (rows * 5000,)]),
            generator.choice(_DTYPES),
            generator.choice(context),
            generator.choice(group.ranks),
        )

    def options(self, api: Any) -> dict[str, Any]:
        """Return the arguments of the call; `api` is the frontend's module."""
        options: dict[str, Any] = {"process_set": self.group}
        if self.operation in ("allreduce", "reducescatter"):
            options["op"] = getattr(api, self.op)
        if self.operation == "broadcast":
            options["root_rank"] = self.root
        return options

    def expected(self, inputs: Sequence[Array], member: int) -> Array:
        if self.operation == "allreduce":
            return reference.allreduce(inputs, self.op, self.dtype)
        if self.operation == "reducescatter":
            return reference.reducescatter(inputs, self.op, self.dtype, member)
        if self.operation == "broadcast":
            return inputs[self.group.ranks.index(self.root)]
        if self.operation == "allgather":
            return np.concatenate(inputs)
        rows = len(inputs[0]) // len(inputs)
        return np.concatenate([array[member * rows : (member + 1) * rows] for array in inputs])
