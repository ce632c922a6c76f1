"""The interface of JAX arrays that the shared modules use: see farandole.arrays.Arrays.

Arrays in host memory are read as NumPy arrays, without a copy. Results of the engine become JAX
arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farandole import core
from farandole import numpy as numpy_arrays
from farandole.arrays import SIGNED_DTYPES, check_dtype
from farandole.errors import CallError
from farandole.numpy import (
    bytes_of,
    dtype_and_shape,
    empty,
    empty_like,
    flat,
    item_bytes,
    largest_difference,
    view_of,
)

__all__ = [
    "as_signed",
    "bytes_of",
    "check",
    "concatenate",
    "contiguous_on_host",
    "dtype_and_shape",
    "empty",
    "empty_like",
    "exact_array_types",
    "flat",
    "from_engine",
    "from_signed",
    "has_exact_gradients",
    "is_array",
    "is_key",
    "item_bytes",
    "key_data",
    "largest_difference",
    "on_device_of",
    "padded_with_zeros",
    "view_of",
    "why_unreadable",
    "zeros_like",
]

exact_array_types = numpy_arrays.exact_array_types
has_exact_gradients = True


def is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def check(array: Any) -> None:
    if not is_array(array):
        raise CallError(f"a jax.Array is needed, not a {type(array).__name__}")
    if isinstance(array, jax.Array):
        check_dtype(array.dtype.name)
        return
    numpy_arrays.check_numpy_dtype(array.dtype)
    _check_fits_int32(array, "the array")


def _check_fits_int32(array: Any, subject: str) -> None:
    int32 = np.iinfo(np.int32)
    may_be_truncated = array.dtype == np.int64 and array.size > 0 and not jax.config.jax_enable_x64
    if may_be_truncated and (array.min() < int32.min or array.max() > int32.max):
        raise CallError(
            f"{subject} has the dtype int64 and numbers that do not fit into int32, and JAX would "
            "cut them off: set JAX_ENABLE_X64=1 on all ranks"
        )


def check_device(array: Any) -> None:
    if isinstance(array, jax.Array):
        platforms = {device.platform for device in array.devices()}
        if platforms != {"cpu"}:
            raise CallError(
                f"the array is on {', '.join(sorted(platforms))}, but calls need arrays on the "
                "CPU: set JAX_PLATFORMS=cpu"
            )


def is_key(value: object) -> bool:
    """Return whether the value is a key of jax.random."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def key_data(value: Any) -> Any:
    """Return the numbers (uint32) of a key. Return any other value unchanged."""
    return jax.random.key_data(value) if is_key(value) else value


def as_signed(value: Any) -> Any:
    """Return a key, or an array of uint32 or uint64, as signed integers with the same bits, which
    the engine can send. Return any other value unchanged."""
    data = key_data(value)
    dtype = _signed_dtype(data)
    return data if dtype is None else jax.lax.bitcast_convert_type(data, dtype)


def from_signed(result: Any, value: Any) -> Any:
    """Convert the result of a call on as_signed(value) back to the dtype of `value`."""
    if is_key(value):
        bits = jax.lax.bitcast_convert_type(result, jnp.uint32)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(value))
    is_unconverted = _signed_dtype(value) is None
    return result if is_unconverted else jax.lax.bitcast_convert_type(result, value.dtype)


def _signed_dtype(value: Any) -> str | None:
    # By default, JAX would drop the upper half of each uint64 of a NumPy array, so such arrays are
    # not converted.
    can_be_converted = isinstance(value, jax.Array) or (
        is_array(value) and value.dtype.itemsize <= 4
    )
    return SIGNED_DTYPES.get(value.dtype.name) if can_be_converted else None


def contiguous_on_host(array: Any) -> Any:
    check_device(array)
    return numpy_arrays.contiguous_on_host(array)


def from_engine(memory: core.SharedArray) -> Any:
    return jax.dlpack.from_dlpack(memory)


def on_device_of(array: Any, result: Any) -> Any:
    if isinstance(result, np.ndarray):
        _check_fits_int32(result, "the result")
    return jnp.asarray(result)


def zeros_like(array: Any) -> Any:
    return jnp.zeros_like(array)


def padded_with_zeros(array: Any, rows: int) -> Any:
    return jnp.concatenate((array, jnp.zeros((rows - len(array), *array.shape[1:]), array.dtype)))


def concatenate(arrays: Sequence[Any]) -> Any:
    return jnp.concatenate(arrays)


def why_unreadable(array: Any) -> str:
    if isinstance(array, jax.core.Tracer):
        return "traced, inside jit or another transformation"
    if isinstance(array, jax.Array) and array.is_deleted():
        return "deleted, because it was donated"
    return ""
