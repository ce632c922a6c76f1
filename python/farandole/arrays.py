"""The functions on arrays that the shared modules need from a frontend.

The shared modules work on any framework's arrays. They use only `shape`, `dtype`, `tolist()`,
`len()`, slices of the first dimension and the product with a number. For everything else, the
frontend provides an object with the functions below. The object can be a module, such as
farandole.torch.tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from farandole import core
from farandole.errors import CallError

Array: TypeAlias = Any  # an array of the frontend's framework
Shape: TypeAlias = Sequence[int]


# The engine cannot send these unsigned dtypes, which the states of random generators have.
# So broadcasts of variables and keys send these bits as signed integers.
SIGNED_DTYPES = {"uint32": "int32", "uint64": "int64"}


class GradientArrays(Protocol):
    """The functions on arrays that Operation.backward() uses. A framework may call backward() while
    it traces a program. Then the sizes in a shape may be arrays without known values."""

    # Whether gradients are those of the sum of all members' losses. If not, the gradient of a
    # broadcast or allgather is divided by their number, and that of a reducescatter multiplied.
    has_exact_gradients: bool

    def zeros_like(self, array: Array, /) -> Array:
        """Return zeros with the shape and dtype of `array`, on its device."""

    def padded_with_zeros(self, array: Array, rows: Any, /) -> Array:
        """Return the array with rows of zeros at its end, so that it has `rows` rows."""


class Arrays(GradientArrays, Protocol):
    # An object of exactly one of these types is an array without other state, so sending its values
    # is enough. An object of a subclass may have more state than its values.
    exact_array_types: tuple[type, ...]

    def is_array(self, value: object, /) -> bool: ...

    def check(self, array: Array, /) -> None:
        """Raise CallError unless this is an array whose values the engine can send."""

    def dtype_and_shape(self, array: Array, /) -> str:
        """Return the dtype and the shape as text for people: "float32 [2, 3]"."""

    def contiguous_on_host(self, array: Array, /) -> Array:
        """Return the array itself if it is contiguous in host memory. Otherwise return a contiguous
        copy in host memory."""

    def view_of(self, array: Array, source: Array, target: Array | None, /) -> core.BufferView:
        """Return a view that borrows the memory of `source` and of `target`. `source` is
        contiguous_on_host(array). The result is written into `target` or, if it is None, into
        memory of the engine."""

    def from_engine(self, memory: core.SharedArray, /) -> Array:
        """Return memory of the engine as an array, without a copy."""

    def on_device_of(self, array: Array, result: Array, /) -> Array:
        """Return `result`, which is in host memory. If `array` is on another device, return a copy
        of `result` on that device."""

    def empty(self, shape: Shape, dtype: Any, /) -> Array:
        """Return a new array in host memory; its values are undefined."""

    def empty_like(self, array: Array, /) -> Array:
        """Return a new array of the same shape and dtype as `array`. `array` is in host memory. The
        values of the new array are undefined."""

    def concatenate(self, arrays: Sequence[Array], /) -> Array:
        """Join arrays along their first dimension."""

    def flat(self, array: Array, /) -> Array:
        """Return the array with one dimension and without a gradient. An array that is contiguous
        on the host is not copied."""

    def item_bytes(self, array: Array, /) -> int:
        """Return the size of one element in bytes."""

    def why_unreadable(self, array: Array, /) -> str:
        """Return why the array's bytes cannot be read, such as "on the device meta". Return "" if
        they can be read."""

    def bytes_of(self, array: Array, /) -> Any:
        """Return the bytes of the array's values, as an object with the buffer protocol."""

    def largest_difference(self, first: Array, second: Array, /) -> float:
        """Return the largest difference between two elements with the same index, in float64."""


def check_dtype(name: str) -> None:
    """Raise CallError unless the engine has a dtype of this name."""
    if name not in core.dtypes:
        known = ", ".join(core.dtypes)
        raise CallError(f"{name} cannot be reduced or sent; these can: {known}")


def can_be_sent(arrays: Arrays, value: object) -> bool:
    try:
        arrays.check(value)
    except CallError:
        return False
    return True
