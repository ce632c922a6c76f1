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
from farandole.arrays import check_dtype
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
    "as_before",
    "as_signed",
    "bytes_of",
    "check",
    "concatenate",
    "contiguous_on_host",
    "dtype_and_shape",
    "empty",
    "empty_like",
    "extended",
    "flat",
    "is_array",
    "is_key",
    "is_uint32",
    "item_bytes",
    "key_data",
    "largest_difference",
    "on_device_of",
    "plain_types",
    "received",
    "view_of",
    "why_unreadable",
    "zeros_like",
]

plain_types = numpy_arrays.plain_types


def is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def check(array: Any) -> None:
    if not is_array(array):
        raise CallError(f"a jax.Array is needed, not a {type(array).__name__}")
    check_dtype(array.dtype.name)


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


def is_uint32(value: Any) -> bool:
    return is_array(value) and value.dtype == jnp.uint32


def key_data(value: Any) -> Any:
    """Return the numbers of a key, in uint32, and any other value as it is."""
    return jax.random.key_data(value) if is_key(value) else value


def as_signed(value: Any) -> Any:
    """Return the bits of a key or of a uint32 array as int32, a dtype that the engine sends. Return
    any other value as it is."""
    data = key_data(value)
    return jax.lax.bitcast_convert_type(data, jnp.int32) if is_uint32(data) else data


def as_before(result: Any, value: Any) -> Any:
    """Undo as_signed(value) for a result."""
    if not is_key(value) and not is_uint32(value):
        return result
    bits = jax.lax.bitcast_convert_type(result, jnp.uint32)
    return (
        jax.random.wrap_key_data(bits, impl=jax.random.key_impl(value)) if is_key(value) else bits
    )


def contiguous_on_host(array: Any) -> Any:
    check_device(array)
    return numpy_arrays.contiguous_on_host(array)


def received(memory: core.SharedArray) -> Any:
    return jax.dlpack.from_dlpack(memory)


def on_device_of(array: Any, result: Any) -> Any:
    return jnp.asarray(result)


def zeros_like(array: Any) -> Any:
    return jnp.zeros_like(array)


def extended(array: Any, rows: int) -> Any:
    return jnp.concatenate((array, jnp.zeros((rows - len(array), *array.shape[1:]), array.dtype)))


def concatenate(arrays: Sequence[Any]) -> Any:
    return jnp.concatenate(arrays)


def why_unreadable(array: Any) -> str:
    if isinstance(array, jax.core.Tracer):
        return "traced, inside jit or another transformation"
    if isinstance(array, jax.Array) and array.is_deleted():
        return "deleted, because it was donated"
    return ""
