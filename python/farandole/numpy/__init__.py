"""NumPy arrays for the shared modules: an implementation of farandole.arrays.Arrays.

Frontends whose arrays can be read as NumPy arrays use this module, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole import core
from farandole.arrays import check_dtype
from farandole.errors import CallError

has_exact_gradients = False  # they follow Horovod's rules
exact_array_types: tuple[type, ...] = (np.ndarray,)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def check(array: Any) -> None:
    if not is_array(array):
        raise CallError(f"a numpy.ndarray is needed, not a {type(array).__name__}")
    check_numpy_dtype(array.dtype)


def check_numpy_dtype(dtype: np.dtype[Any]) -> None:
    check_dtype(dtype.name)
    if not dtype.isnative:
        raise CallError(
            f"the array has the dtype {dtype.str}, whose byte order is not that of this machine: "
            f'use array.astype("{dtype.name}")'
        )


def dtype_and_shape(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}"


def contiguous_on_host(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(array.shape)


def view_of(array: Any, source: Any, target: Any | None) -> core.BufferView:
    output = 0 if target is None else target.ctypes.data
    code = core.dtypes[source.dtype.name]
    return core.BufferView(code, source.shape, source.ctypes.data, output)


def from_engine(memory: core.SharedArray) -> Any:
    return np.from_dlpack(memory)


def on_device_of(array: Any, result: Any) -> Any:
    return result


def empty(shape: Sequence[int], dtype: Any) -> Any:
    return np.empty(shape, dtype)


def empty_like(array: Any) -> Any:
    return np.empty_like(array)


def zeros_like(array: Any) -> Any:
    return np.zeros_like(array)


def padded_with_zeros(array: Any, rows: int) -> Any:
    return np.concatenate((array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)))


def concatenate(arrays: Sequence[Any]) -> Any:
    return np.concatenate(arrays)


def flat(array: Any) -> Any:
    return array.reshape(-1)


def item_bytes(array: Any) -> int:
    return int(array.dtype.itemsize)


def why_unreadable(array: Any) -> str:
    return ""


def bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def largest_difference(first: Any, second: Any) -> float:
    return float(np.abs(np.asarray(first, float) - np.asarray(second, float)).max())
