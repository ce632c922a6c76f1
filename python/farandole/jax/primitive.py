"""The JAX primitive by which compiled programs make calls.

One primitive serves all operations. It has an ordered effect, so XLA runs all calls of a process
one after another, in the order in which the program makes them. This holds inside one compiled
program and between several (docs/decisions/0065). Only this module and programs.py use private
parts of JAX. This module uses `jax._src.effects`, `jax._src.core.abstract_token`,
`jax._src.core.trace_state_clean`, `jax._src.dispatch.RuntimeTokenSet` and `mlir.TokenSet`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as jax_core
from jax._src import dispatch, effects
from jax._src.interpreters import mlir
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from farandole import arguments, core, lifecycle, operations
from farandole.errors import CallError
from farandole.jax import arrays as jax_arrays
from farandole.jax import programs
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Backward,
    Broadcast,
    Operation,
    Reducescatter,
    return_array,
)
from farandole.reduce_op import Adasum, Sum


class TracedCall(NamedTuple):
    """The operation, its arguments and the name of a call, as values that JAX can compare."""

    operation_type: type[Operation]
    arguments: tuple[Any, ...]
    name: str
    job: int  # core.job_number() when the call was traced

    @classmethod
    def from_operation(cls, operation: Operation, name: str) -> TracedCall:
        if isinstance(operation, (Allreduce, Reducescatter)):
            operation_arguments: tuple[Any, ...] = (
                operation.group,
                operation.op,
                operation.prescale,
                operation.postscale,
            )
        elif isinstance(operation, Broadcast):
            operation_arguments = (operation.group, arguments.checked_rank(operation.root_rank))
        elif isinstance(operation, Alltoall):
            # Inside jit, all members get the same number of rows.
            operation_arguments = (operation.group, None)
        else:
            operation_arguments = (operation.group,)
        name = name or f"jax.{operation.kind}"
        return cls(type(operation), operation_arguments, name, core.job_number())

    def operation(self) -> Operation:
        return self.operation_type(*self.arguments)

    def attributes(self) -> dict[str, Any]:
        fields = {"reduce_op": int(Sum), "root_rank": 0, "prescale": 1.0, "postscale": 1.0}
        fields |= self.operation().fields()
        return {
            "name": self.name,
            programs.PROGRAM_ATTRIBUTE: np.int64(self.job),
            "operation": np.int64(core.operations[self.operation_type.kind]),
            **{
                name: np.float64(v) if type(v) is float else np.int64(v)
                for name, v in fields.items()
            },
        }


class _CallEffect(effects.Effect):
    def __repr__(self) -> str:  # JAX shows this text in errors
        return "a call of farandole"


class _OrderedCallEffect(_CallEffect):
    pass


# Without the unordered effect, JAX would start a program from lower().compile() on a fast path.
# That path loses the token by which XLA keeps the calls in order.
_ORDERED_EFFECT, _UNORDERED_EFFECT = _OrderedCallEffect(), _CallEffect()
effects.ordered_effects.add_type(_OrderedCallEffect)
for _effect_set in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _effect_set.add_type(_CallEffect)

_primitive = Primitive("farandole_call")
_primitive.multiple_results = True


def is_traced(inputs: Sequence[Any]) -> bool:
    """Return whether a call on these inputs must go through JAX, because JAX traces a program or
    computes derivatives. Inside jit, this is true even if all inputs are constants: otherwise the
    call would run only during tracing, and ranks trace at different times."""
    return not jax_core.trace_state_clean() or any(
        isinstance(array, jax.core.Tracer) for array in inputs
    )


def bind(call: TracedCall, inputs: Sequence[Any]) -> list[Any]:
    return list(_primitive.bind(*inputs, call=call))


def wait_for_programs() -> None:
    """Wait until all compiled programs that are running have finished their calls. If a program has
    failed, raise its error, but only the first time."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        # Drop the token of the failed program, because this token would make each later program
        # fail, too.
        dispatch.runtime_tokens.clear()
        raise


def run_now(operation: Operation, inputs: Sequence[Any], name: str | None) -> list[Any]:
    """Run the calls on this thread, after the calls of all compiled programs that are running."""
    wait_for_programs()
    batch = [operation] * len(inputs)
    return operations.start_batch(
        jax_arrays, batch, inputs, name, return_array, blocking=True
    ).wait()


@_primitive.def_impl
def _run(*inputs: Any, call: TracedCall) -> list[Any]:
    # Outside of jit, JAX may pass a Python number as the input of a derivative.
    return run_now(call.operation(), [jnp.asarray(array) for array in inputs], call.name)


@_primitive.def_effectful_abstract_eval
def _abstract_results(*inputs: Any, call: TracedCall) -> tuple[list[Any], set[effects.Effect]]:
    operation = call.operation()
    results = [
        jax_core.ShapedArray(_result_shape(operation, array.shape), array.dtype) for array in inputs
    ]
    return results, {_ORDERED_EFFECT, _UNORDERED_EFFECT}


def _result_shape(operation: Operation, shape: tuple[int, ...]) -> tuple[int, ...]:
    arguments.group_number(operation.group)
    if isinstance(operation, (Allreduce, Broadcast)):
        return shape
    member_count = operation.group.size()
    if not shape:
        raise CallError(
            f"{operation.kind} needs an array with at least one dimension; this one has none"
        )
    if isinstance(operation, Allgather):
        return (member_count * shape[0], *shape[1:])
    if isinstance(operation, Alltoall):
        if shape[0] % member_count:
            raise CallError(
                "inside jit, the first dimension of an alltoall must be a multiple of the number "
                f"of members, {member_count}; it is {shape[0]}"
            )
        return shape
    return (core.scattered_rows(shape[0], member_count, operation.group.rank()), *shape[1:])


def _lower(ctx: mlir.LoweringRuleContext, *inputs: Any, call: TracedCall) -> Sequence[Any]:
    token = ctx.tokens_in.get(_ORDERED_EFFECT)
    ctx_with_token = ctx.replace(
        avals_in=[*ctx.avals_in, jax_core.abstract_token],
        avals_out=[*ctx.avals_out, jax_core.abstract_token],
    )
    # A result with the shape of its input is written over the input, because new memory would cause
    # page faults. If the program needs the input later, XLA makes a copy, and the result is written
    # over the copy.
    in_place_count = len(inputs) if call.operation_type in (Allreduce, Broadcast) else 0
    lower_ffi_call = jax.ffi.ffi_lowering(
        programs.FFI_TARGET,
        has_side_effect=True,
        operand_output_aliases={i: i for i in range(in_place_count)},
    )
    *results, token = lower_ffi_call(ctx_with_token, *inputs, token, **call.attributes())
    ctx.set_tokens_out(mlir.TokenSet({_ORDERED_EFFECT: token}))
    return results


def _jvp(inputs: Sequence[Any], tangents: Sequence[Any], *, call: TracedCall) -> Any:
    """Return the results and their derivatives. The derivative of a linear operation is the
    operation itself; check_differentiable() rejects the reductions that are not linear."""
    outputs = bind(call, inputs)
    indices = [i for i, output in enumerate(outputs) if jnp.issubdtype(output.dtype, jnp.inexact)]
    derivatives: list[Any] = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    if all(type(tangents[i]) is ad.Zero for i in indices):
        return outputs, derivatives
    call.operation().check_differentiable()
    float_tangents = [ad.instantiate_zeros(tangents[i]) for i in indices]
    for i, tangent in zip(indices, bind(_gradient_call_of(call), float_tangents), strict=True):
        derivatives[i] = tangent
    return outputs, derivatives


def _transpose(cotangents: Sequence[Any], *inputs: Any, call: TracedCall) -> list[Any]:
    """Return the gradients of the inputs."""
    operation = call.operation()
    backward_calls = []
    for cotangent, tangent in zip(cotangents, inputs, strict=True):
        gradient, shape = ad.instantiate_zeros(cotangent), tangent.aval.shape
        rows = [shape[0] // _part_count(operation)] * operation.group.size() if shape else []
        backward_call = operation.backward(jax_arrays, gradient, shape, rows)
        is_gathered = isinstance(operation, Reducescatter)
        backward_calls.append(
            _with_equal_rows(backward_call, shape[0]) if is_gathered else backward_call
        )
    traced_call = TracedCall.from_operation(backward_calls[0].operation, call.name)
    results = bind(traced_call, [backward_call.array for backward_call in backward_calls])
    return [
        backward_call.finish(result)
        if ad.is_undefined_primal(tangent)
        else None  # the gradient of a constant is None
        for backward_call, result, tangent in zip(backward_calls, results, inputs, strict=True)
    ]


def _with_equal_rows(backward_call: Backward, rows: int) -> Backward:
    """Make all members gather the same number of rows, as jit requires. If the rows of a
    reducescatter cannot be divided equally, the last members have one row less, so these members
    also send a row of zeros."""
    member_count = backward_call.operation.group.size()
    if rows % member_count == 0:
        return backward_call
    rows_max = rows // member_count + 1
    counts = [core.scattered_rows(rows, member_count, member) for member in range(member_count)]

    def finish_without_zeros(gathered: Any) -> Any:
        parts = [gathered[i * rows_max : i * rows_max + count] for i, count in enumerate(counts)]
        return backward_call.finish(jnp.concatenate(parts))

    return Backward(
        backward_call.operation,
        jax_arrays.padded_with_zeros(backward_call.array, rows_max),
        finish_without_zeros,
    )


def _part_count(operation: Operation) -> int:
    return operation.group.size() if isinstance(operation, Alltoall) else 1


def _gradient_call_of(call: TracedCall) -> TracedCall:
    return call._replace(name=arguments.gradient_name(call.name) or "")


def _batch(inputs: Sequence[Any], dims: Sequence[int | None], *, call: TracedCall) -> Any:
    """Make one call for all examples of vmap. If the operation works on rows, the rows stay the
    first dimension, and the examples become the second dimension."""
    if getattr(call.operation(), "op", Sum) is Adasum:
        raise CallError(
            "an allreduce with op Adasum cannot be used inside vmap, because it would combine all "
            "examples as one array: call it outside of vmap"
        )
    batch_size = next(
        array.shape[dim] for array, dim in zip(inputs, dims, strict=True) if dim is not None
    )
    batch_axis = 0 if call.operation_type in (Allreduce, Broadcast) else 1
    moved_inputs = [
        jnp.moveaxis(array, dim, batch_axis)
        if dim is not None
        else jnp.broadcast_to(
            jnp.expand_dims(array, batch_axis),
            (*array.shape[:batch_axis], batch_size, *array.shape[batch_axis:]),
        )
        for array, dim in zip(inputs, dims, strict=True)
    ]
    return bind(call, moved_inputs), [batch_axis] * len(moved_inputs)


def _without_token_copy(get_token: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that gives a program the token of the previous program. JAX copies the token
    to the program's devices even if it is already there, which adds 100 µs to each start. The
    returned method makes no copy in this case."""

    @functools.wraps(get_token)
    def get_without_copy(tokens: Any, effect: effects.Effect, devices: Sequence[Any]) -> Any:
        token = tokens.current_tokens.get(effect)
        is_call_token = effect is _ORDERED_EFFECT and isinstance(token, jax_core.Token)
        if is_call_token and token._buf.devices() == set(devices):
            return token
        return get_token(tokens, effect, devices)

    return get_without_copy


_token_set: Any = dispatch.RuntimeTokenSet
_token_set.get_token_input = _without_token_copy(_token_set.get_token_input)
lifecycle.add_framework_wait(wait_for_programs)
jax.ffi.register_ffi_target(programs.FFI_TARGET, core.xla_call, platform="cpu")
mlir.register_lowering(_primitive, _lower, platform="cpu")
ad.primitive_jvps[_primitive] = _jvp
ad.primitive_transposes[_primitive] = _transpose
batching.primitive_batchers[_primitive] = _batch
