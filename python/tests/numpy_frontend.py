"""A frontend for NumPy, for tests only. It uses only the shared modules and the engine.

The frontend has no in-place calls. It shows that the shared modules depend on no framework, and how
little code a frontend needs. docs/howto/frontend.md gives its size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from conformance import Conformance
from reference import DTYPES, OPERATIONS, Array
from reference import Operation as Reference

from farandole import arguments, calls, exports, objects, operations
from farandole import numpy as numpy_arrays
from farandole.handle import BatchHandle, Handle
from farandole.operations import Alltoall, Operation, return_array


def _with_received_splits(array: Array, rows: Sequence[int]) -> tuple[Array, Array]:
    return array, np.array(rows, np.int32)


def _finish_of(operation: Operation, waits: bool) -> Callable[..., Any]:
    returns_splits = isinstance(operation, Alltoall) and not (waits and operation.splits is None)
    return _with_received_splits if returns_splits else return_array


def functions_of(reference: Reference) -> dict[str, Callable[..., Any]]:
    """Return the four functions of an operation: single and grouped, blocking and asynchronous."""

    def start(
        array: Array,
        *args: Any,
        name: str | None = None,
        waits: bool = False,
        **options: Any,
    ) -> Handle[Any]:
        operation = reference.make(*args, **options)
        return operations.start(
            numpy_arrays, operation, array, name, _finish_of(operation, waits), waits
        )

    def start_all(
        arrays: Sequence[Array],
        *args: Any,
        name: str | None = None,
        waits: bool = False,
        **options: Any,
    ) -> BatchHandle[Any]:
        count = len(arguments.checked_batch(arrays))
        if (splits := options.pop("splits", None)) is None:
            batch = [reference.make(*args, **options)] * count
        else:
            split_lists = arguments.checked_batch_splits(splits, count)
            batch = [
                reference.make(*args, splits=tensor_splits, **options)
                for tensor_splits in split_lists
            ]
        finish = _finish_of(batch[0], waits)
        return operations.start_batch(numpy_arrays, batch, arrays, name, finish, waits)

    return {
        reference.name: lambda *args, **options: start(*args, waits=True, **options).wait(),
        f"{reference.name}_async": start,
        f"grouped_{reference.name}": lambda *args, **options: start_all(
            *args, waits=True, **options
        ).wait(),
        f"grouped_{reference.name}_async": start_all,
    }


def make_api(has_async: bool) -> SimpleNamespace:
    """Return an object that has the functions of a frontend's module, such as allreduce()."""
    functions = {name: getattr(exports, name) for name in exports.__all__}
    for module, names in (
        (calls, "barrier join poll synchronize"),
        (objects, "allgather_object broadcast_object"),
    ):
        functions |= {name: getattr(module, name) for name in names.split()}
    for reference in OPERATIONS.values():
        functions |= functions_of(reference)
    if not has_async:
        functions = {
            name: value for name, value in functions.items() if not name.endswith("_async")
        }
    return SimpleNamespace(**functions)


class NumpyFrontend:
    has_in_place = False
    dtypes = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")

    def __init__(self, has_async: bool) -> None:
        self.api, self.has_async = make_api(has_async), has_async

    def tensor(self, values: Array, dtype: str) -> Array:
        return np.asarray(values).astype(dtype)

    def array(self, tensor: Array) -> Array:
        return tensor.astype(float) if tensor.dtype.kind == "f" else tensor

    def dtype(self, tensor: Array) -> str:
        return tensor.dtype.name


class NumpyConformance(Conformance):
    def __init__(self, has_async: bool = True) -> None:
        super().__init__(NumpyFrontend(has_async))

    def check_numpy_needs_no_framework(self) -> None:
        assert "torch" not in sys.modules


class NumpyWithoutAsync(NumpyConformance):
    """The conformance suite for the same frontend without asynchronous calls."""

    def __init__(self) -> None:
        super().__init__(has_async=False)
