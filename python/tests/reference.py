"""The results of collective operations, in NumPy, as functions of the inputs of all members.

Inputs are a function of the rank, so that every worker knows those of all ranks. They are small
whole numbers, so that sums are exact in every dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole import core

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

DTYPES = tuple(core.dtypes)
OPS = ("Sum", "Average", "Min", "Max", "Product")
UNSIGNED = ("bool", "uint8", "uint16")
SHAPES: tuple[Shape, ...] = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (40_000,))
EPSILON = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-7, "float64": 1e-15}
# Absolute tolerances. Elements that cancel out in an Adasum leave rounding errors of float64;
# float16 is coarse near zero.
NEAR_ZERO = {"float16": 3e-8, "bfloat16": 1e-12, "float32": 1e-12, "float64": 1e-12}


@functools.lru_cache(maxsize=1000)
def input_of(rank: int, shape: Shape, dtype: str, seed: int = 0) -> Array:
    low, high = (0 if dtype in UNSIGNED else -3), (2 if dtype == "bool" else 4)
    return np.random.default_rng((seed, rank)).integers(low, high, shape)


def allreduce(
    inputs: Sequence[Array], op: str, dtype: str, scales: tuple[float, float] = (1, 1)
) -> Array:
    stack = scaled(np.stack(inputs), scales[0], dtype)
    if op == "Adasum":
        result = adasum(stack.astype(float))
    elif dtype == "bool":
        result = stack.any(0) if op in ("Sum", "Max") else stack.all(0)
    elif op == "Average":
        mean = stack.sum(0) / len(inputs)
        result = mean if dtype in EPSILON else np.trunc(mean)
    else:
        reduce = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op]
        result = reduce(stack, axis=0)
    return scaled(result, scales[1], dtype)


def adasum(level: Array) -> Array:
    """Combine pairs of neighbours until one is left; a last one without a pair is kept."""
    while len(level) > 1:
        pairs = [adasum_of_two(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = np.stack([*pairs, *level[len(pairs) * 2 :]])
    return level[0]


def adasum_of_two(a: Array, b: Array) -> Array:
    common = (a * b).sum()
    of_a, of_b = (1 - common / square / 2 if (square := (x * x).sum()) else 1 for x in (a, b))
    return of_a * a + of_b * b


def scaled(array: Array, factor: float, dtype: str) -> Array:
    if factor == 1:
        return array
    if dtype == "bool":
        return (array * factor).astype(bool)
    if dtype in EPSILON:
        return array * factor
    ends = np.iinfo(dtype)
    return np.clip(np.trunc(array * factor), ends.min, ends.max)


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
    """Return what the member receives, and how many rows from each sender."""
    rows = [of_sender[member] for of_sender in splits]
    first = [sum(of_sender[:member]) for of_sender in splits]
    parts = [a[f : f + r] for a, f, r in zip(inputs, first, rows, strict=True)]
    return np.concatenate(parts), rows
