"""The frontend of the framework that Keras uses, and NumPy outside of compiled programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from farandole import arguments, operations
from farandole import numpy as numpy_arrays
from farandole.arrays import SIGNED_DTYPES
from farandole.comparison import equal_on_all_members, gather_texts
from farandole.compression import AnyCompressor
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allreduce, Operation
from farandole.training.gradients import CALL_NAME, GradientFunctions, Kind, check_kinds

Function = TypeVar("Function", bound=Callable[..., Any])

_FRONTENDS = ("jax", "tensorflow", "torch")


def frontend() -> Any:
    """Return the module farandole.torch, farandole.jax or farandole.tensorflow."""
    name = keras.config.backend()
    if name not in _FRONTENDS:
        raise CallError(
            f"Keras uses the backend {name!r}, for which farandole.keras has no operations: set "
            f"KERAS_BACKEND to one of {', '.join(_FRONTENDS)} before Keras is imported"
        )
    return importlib.import_module(f"farandole.{name}")


class _DenseGradientFunctions:
    """Implements farandole.training.gradients.GradientFunctions for torch and JAX. In these
    backends Keras makes no sparse gradients."""

    def combine_if_member(
        self,
        group: Group,
        gradients: Sequence[Any],
        combine: Callable[[], list[Any]],
        keep_own: Callable[[], list[Any]],
    ) -> list[Any]:
        if keras.config.backend() == "jax":
            jax_training = importlib.import_module("farandole.jax.training")
            return combine() if jax_training.combines_gradients(gradients, group) else keep_own()
        return keep_own() if group.included() is False else combine()

    def with_checked_kinds(
        self,
        gradients: Sequence[Any],
        kinds: Sequence[Kind],
        group: Group,
        variables: Sequence[Any],
    ) -> list[Any]:
        # JAX computes a gradient of each variable, so the kinds can differ only with torch.
        name, own_kinds = f"{CALL_NAME}.kinds", bytes(kinds)
        is_torch = keras.config.backend() == "torch"
        if is_torch and not equal_on_all_members(own_kinds, name, group):
            check_kinds(gather_texts(own_kinds, name, group), variables)
        return list(gradients)

    def reduce(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        results: list[Any] = frontend().grouped_allreduce(
            list(gradients),
            name=CALL_NAME,
            op=operation.op,
            compression=compression,
            prescale_factor=operation.prescale,
            postscale_factor=operation.postscale,
            process_set=operation.group,
        )
        return results

    def reduce_sparse(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        raise NotImplementedError

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def to_dense(self, gradient: Any) -> Any:
        return gradient

    def scaled(self, gradient: Any, factor: Any) -> Any:
        return gradient * keras.ops.cast(factor, gradient.dtype)

    def overflow_of(self, gradients: Sequence[Any]) -> Any:
        ops = keras.ops
        are_finite = [ops.all(ops.isfinite(gradient)) for gradient in gradients]
        all_finite = ops.all(ops.stack(are_finite)) if are_finite else True
        return ops.cast(ops.logical_not(all_finite), "float32")

    def with_overflow(self, gradient: Any, has_overflow: Any) -> Any:
        return self.scaled(gradient, keras.ops.where(has_overflow, float("inf"), 1.0))

    def member_count(self, group: Group) -> Any:
        return group.size()

    def underlying_variable(self, variable: Any) -> Any:
        return variable


def drop_compiled_step(model: Any) -> None:
    """Make fit() build and compile the training step of the model again."""
    model.train_function = None
    if keras.config.backend() == "jax":
        # If something still refers to the old function, JAX may reuse its compiled program.
        importlib.import_module("jax").clear_caches()


def gradient_functions() -> GradientFunctions:
    frontend()  # raises an error for an unknown backend
    if keras.config.backend() == "tensorflow":
        module = importlib.import_module("farandole.tensorflow.gradients")
        functions: GradientFunctions = module.TensorFlowGradientFunctions()
        return functions
    return _DenseGradientFunctions()


def outside_compiler(function: Function) -> Function:
    """Keep the tracer of torch.compile out of a function that calls the engine: see
    farandole.torch.dynamo. The tracers of other backends may trace our calls."""
    if keras.config.backend() != "torch":
        return function
    outside_function: Function = importlib.import_module("farandole.torch.dynamo").outside_dynamo(
        function
    )
    return outside_function


def numpy_of(value: Any) -> Any:
    """Return a number, an array or a tensor as a NumPy array."""
    if isinstance(value, (bool, int, float, list, tuple, np.ndarray, np.generic)):
        return np.asarray(value)
    return np.asarray(keras.ops.convert_to_numpy(value))


def run_on_numpy(operation: Operation, values: Sequence[Any], name: str | None) -> list[Any]:
    """Run the operation on NumPy arrays, as one batch, and wait for the results."""
    arguments.group_number(operation.group)
    batch = [operation] * len(values)
    finish = operations.return_array
    handle = operations.start_batch(numpy_arrays, batch, values, name, finish, blocking=True)
    return handle.wait()


def as_signed(array: Any) -> Any:
    """Return an array of uint32 or uint64 as signed integers with the same bits, which the engine
    can send. Return any other array unchanged."""
    dtype = SIGNED_DTYPES.get(array.dtype.name)
    return array if dtype is None else np.ascontiguousarray(array).view(dtype)
