"""What a frontend says about the arrays of its framework.

The shared modules work on any framework's arrays. They pass arrays through, use `shape`, `dtype`,
`tolist()`, `len()`, slices of the first dimension and the product with a number, and ask the
frontend for everything else. A frontend gives them an object with the functions below; its module
can be that object, as farandole.torch.tensors is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from farandole import core
from farandole.errors import CallError

Array: TypeAlias = Any  # of the framework
Shape: TypeAlias = Sequence[int]


class Arrays(Protocol):
    # Objects of exactly these types are arrays and nothing more, so they can travel as arrays.
    plain_types: tuple[type, ...]

    def is_array(self, value: object, /) -> bool: ...

    def check(self, array: Array, /) -> None:
        """Raise CallError unless this is an array whose values the engine can send."""

    def kind_of(self, array: Array, /) -> str:
        """Return dtype and shape as people read them: "float32 [2, 3]"."""

    def dense(self, array: Array, /) -> Array:
        """Return the array, or a copy in host memory that holds its values one after another."""

    def view_of(self, array: Array, source: Array, target: Array | None, /) -> core.BufferView:
        """Borrow the memory of `source`, which is dense(array), and of `target`, where the result
        goes. If the target is None, the result goes into memory of the engine."""

    def received(self, memory: core.SharedArray, /) -> Array:
        """Return memory of the engine as an array, without a copy."""

    def returned(self, result: Array, array: Array, /) -> Array:
        """Return a result, which is in host memory, on the device of `array`."""

    def empty(self, shape: Shape, dtype: Any, /) -> Array:
        """Return a new array in host memory, with any values."""

    def empty_like(self, array: Array, /) -> Array:
        """Return a new array like one in host memory, with any values."""

    def zeros(self, shape: Shape, like: Array, /) -> Array:
        """Return zeros of the dtype and on the device of `like`."""

    def concatenate(self, arrays: Sequence[Array], /) -> Array:
        """Join arrays along their first dimension."""

    def flat(self, array: Array, /) -> Array:
        """Return the array with one dimension, without a gradient, and without a copy if it is
        dense."""

    def item_bytes(self, array: Array, /) -> int:
        """Return the size of one element."""

    def why_unreadable(self, array: Array, /) -> str:
        """Return why the array has no bytes to read ("on the device meta"), or ""."""

    def bytes_of(self, array: Array, /) -> Any:
        """Return the bytes of the array's values, as an object with the buffer protocol."""

    def largest_difference(self, one: Array, other: Array, /) -> float:
        """Return the largest distance between two elements in the same place, as float64."""


def can_be_sent(arrays: Arrays, value: object) -> bool:
    try:
        arrays.check(value)
    except CallError:
        return False
    return True
