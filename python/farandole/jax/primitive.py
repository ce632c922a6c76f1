"""The JAX primitive by which compiled programs make calls.

One primitive serves all operations. It has an ordered effect, so XLA runs all calls of a process
one after another, in the order in which the program makes them. This holds inside one compiled
program and between several (docs/decisions/0065). Only this module and programs.py use parts of JAX
that are not public; here, these are `jax._src.effects`, `jax._src.core.abstract_token`,
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
    array_only,
)
from farandole.reduce_op import Adasum, Sum


class TracedCall(NamedTuple):
    """An operation with its arguments, which JAX can compare, and the name of the call."""

    kind: type[Operation]
    arguments: tuple[Any, ...]
    name: str
    job: int  # core.job_number() when the call was traced

    @classmethod
    def of(cls, operation: Operation, name: str) -> TracedCall:
        if isinstance(operation, (Allreduce, Reducescatter)):
            given: tuple[Any, ...] = (
                operation.group,
                operation.op,
                operation.prescale,
                operation.postscale,
            )
        elif isinstance(operation, Broadcast):
            given = (operation.group, arguments.rank_number(operation.root_rank))
        elif isinstance(operation, Alltoall):
            given = (operation.group, None)  # inside jit, all members get equally many rows
        else:
            given = (operation.group,)
        name = name or f"jax.{operation.kind}"
        return cls(type(operation), given, name, core.job_number())

    def operation(self) -> Operation:
        return self.kind(*self.arguments)

    def attributes(self) -> dict[str, Any]:
        fields = {"reduce_op": int(Sum), "root_rank": 0, "prescale": 1.0, "postscale": 1.0}
        fields |= self.operation().fields()
        return {
            "name": self.name,
            programs.ATTRIBUTE: np.int64(self.job),
            "operation": np.int64(core.operations[self.kind.kind]),
            **{
                name: np.float64(v) if type(v) is float else np.int64(v)
                for name, v in fields.items()
            },
        }


class _CallEffect(effects.Effect):
    def __repr__(self) -> str:  # JAX shows it in errors
        return "a call of farandole"


class _OrderedCallEffect(_CallEffect):
    pass


# The second effect has no order. Without it, JAX would start a program of lower().compile() by a
# shorter way, which forgets the token.
_EFFECT, _SECOND_EFFECT = _OrderedCallEffect(), _CallEffect()
effects.ordered_effects.add_type(_OrderedCallEffect)
for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(_CallEffect)

_primitive = Primitive("farandole_call")
_primitive.multiple_results = True


def is_traced(inputs: Sequence[Any]) -> bool:
    """Return whether JAX must get a call on these inputs, because it traces a program or computes
    derivatives. Inside jit, this is so even if all inputs are constants. Otherwise the call would
    run only while the program is traced, and each rank traces at its own times."""
    return not jax_core.trace_state_clean() or any(
        isinstance(array, jax.core.Tracer) for array in inputs
    )


def bind(call: TracedCall, inputs: Sequence[Any]) -> list[Any]:
    return list(_primitive.bind(*inputs, call=call))


def wait_for_programs() -> None:
    """Wait until the calls of all compiled programs that are running are done. If one has failed,
    raise its error once."""
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        # The token of the failed program would make each later program fail, too.
        dispatch.runtime_tokens.clear()
        raise


def run_now(operation: Operation, inputs: Sequence[Any], name: str | None) -> list[Any]:
    """Run the calls on this thread, after the calls of all compiled programs that are running."""
    wait_for_programs()
    batch = [operation] * len(inputs)
    return operations.start_batch(jax_arrays, batch, inputs, name, array_only, waits=True).wait()


@_primitive.def_impl
def _run(*inputs: Any, call: TracedCall) -> list[Any]:
    # Outside of jit, the input of a derivative may still be a number of Python.
    return run_now(call.operation(), [jnp.asarray(array) for array in inputs], call.name)


@_primitive.def_effectful_abstract_eval
def _results(*inputs: Any, call: TracedCall) -> tuple[list[Any], set[effects.Effect]]:
    operation = call.operation()
    results = [
        jax_core.ShapedArray(_result_shape(operation, array.shape), array.dtype) for array in inputs
    ]
    return results, {_EFFECT, _SECOND_EFFECT}


def _result_shape(operation: Operation, shape: tuple[int, ...]) -> tuple[int, ...]:
    arguments.group_number(operation.group)
    if isinstance(operation, (Allreduce, Broadcast)):
        return shape
    members = operation.group.size()
    if not shape:
        raise CallError(
            f"{operation.kind} needs an array with at least one dimension; this one has none"
        )
    if isinstance(operation, Allgather):
        return (members * shape[0], *shape[1:])
    if isinstance(operation, Alltoall):
        if shape[0] % members:
            raise CallError(
                "inside jit, the first dimension of an alltoall must be a multiple of the number "
                f"of members, {members}; it is {shape[0]}"
            )
        return shape
    return (core.scattered_rows(shape[0], members, operation.group.rank()), *shape[1:])


def _lower(ctx: mlir.LoweringRuleContext, *inputs: Any, call: TracedCall) -> Sequence[Any]:
    token = ctx.tokens_in.get(_EFFECT)
    with_token = ctx.replace(
        avals_in=[*ctx.avals_in, jax_core.abstract_token],
        avals_out=[*ctx.avals_out, jax_core.abstract_token],
    )
    # A result that has the shape of its input replaces the input. If the program needs the input
    # later, XLA makes a copy, which the result replaces. So no memory is touched for the first
    # time.
    in_place = len(inputs) if call.kind in (Allreduce, Broadcast) else 0
    compiled = jax.ffi.ffi_lowering(
        programs.TARGET,
        has_side_effect=True,
        operand_output_aliases={i: i for i in range(in_place)},
    )
    *results, token = compiled(with_token, *inputs, token, **call.attributes())
    ctx.set_tokens_out(mlir.TokenSet({_EFFECT: token}))
    return results


def _derivative(inputs: Sequence[Any], tangents: Sequence[Any], *, call: TracedCall) -> Any:
    """All operations but some reductions are linear, so the derivative is the operation itself."""
    outputs = bind(call, inputs)
    places = [i for i, output in enumerate(outputs) if jnp.issubdtype(output.dtype, jnp.inexact)]
    result: list[Any] = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    if all(type(tangents[i]) is ad.Zero for i in places):
        return outputs, result
    call.operation().check_linear()
    moving = [ad.instantiate_zeros(tangents[i]) for i in places]
    for i, tangent in zip(places, bind(_gradient_of(call), moving), strict=True):
        result[i] = tangent
    return outputs, result


def _transposed(cotangents: Sequence[Any], *inputs: Any, call: TracedCall) -> list[Any]:
    """Return the gradients of the inputs, by the rules that all frontends share."""
    operation = call.operation()
    steps = []
    for cotangent, tangent in zip(cotangents, inputs, strict=True):
        gradient, shape = ad.instantiate_zeros(cotangent), tangent.aval.shape
        rows = [shape[0] // _parts(operation)] * operation.group.size() if shape else []
        step = operation.backward(jax_arrays, gradient, shape, rows)
        is_gathered = isinstance(operation, Reducescatter)
        steps.append(_with_equal_rows(step, shape[0]) if is_gathered else step)
    backward = TracedCall.of(steps[0].operation, call.name)
    results = bind(backward, [step.array for step in steps])
    return [
        step.finish(result) if ad.is_undefined_primal(tangent) else None  # None: a constant
        for step, result, tangent in zip(steps, results, inputs, strict=True)
    ]


def _with_equal_rows(step: Backward, rows: int) -> Backward:
    """Let all members gather equally many rows, which jit needs. If the rows of a reducescatter
    cannot be divided equally, the last members have one row less, and send a row of zeros."""
    members = step.operation.group.size()
    if rows % members == 0:
        return step
    most = rows // members + 1
    counts = [core.scattered_rows(rows, members, member) for member in range(members)]

    def without_zeros(gathered: Any) -> Any:
        parts = [gathered[i * most : i * most + count] for i, count in enumerate(counts)]
        return step.finish(jnp.concatenate(parts))

    return Backward(step.operation, jax_arrays.extended(step.array, most), without_zeros)


def _parts(operation: Operation) -> int:
    return operation.group.size() if isinstance(operation, Alltoall) else 1


def _gradient_of(call: TracedCall) -> TracedCall:
    return call._replace(name=arguments.gradient_name(call.name) or "")


def _batched(inputs: Sequence[Any], dims: Sequence[int | None], *, call: TracedCall) -> Any:
    """Make one call for all examples of vmap. The rows of the operations stay the first
    dimension."""
    if getattr(call.operation(), "op", Sum) is Adasum:
        raise CallError(
            "an allreduce with op Adasum cannot be used inside vmap, because it would combine all "
            "examples as one array: call it outside of vmap"
        )
    size = next(
        array.shape[dim] for array, dim in zip(inputs, dims, strict=True) if dim is not None
    )
    place = 0 if call.kind in (Allreduce, Broadcast) else 1
    moved = [
        jnp.moveaxis(array, dim, place)
        if dim is not None
        else jnp.broadcast_to(
            jnp.expand_dims(array, place), (*array.shape[:place], size, *array.shape[place:])
        )
        for array, dim in zip(inputs, dims, strict=True)
    ]
    return bind(call, moved), [place] * len(moved)


def _with_token_in_place(get_token: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that gives a program the token of the last one. JAX copies the token to the
    program's devices, even if it is already there. The copy takes 100 µs of each start; the wrapped
    method avoids it."""

    @functools.wraps(get_token)
    def get(tokens: Any, effect: effects.Effect, devices: Sequence[Any]) -> Any:
        token = tokens.current_tokens.get(effect)
        is_ours = effect is _EFFECT and isinstance(token, jax_core.Token)
        if is_ours and token._buf.devices() == set(devices):
            return token
        return get_token(tokens, effect, devices)

    return get


_tokens: Any = dispatch.RuntimeTokenSet
_tokens.get_token_input = _with_token_in_place(_tokens.get_token_input)
lifecycle.add_framework_wait(wait_for_programs)
jax.ffi.register_ffi_target(programs.TARGET, core.xla_call, platform="cpu")
mlir.register_lowering(_primitive, _lower, platform="cpu")
ad.primitive_jvps[_primitive] = _derivative
ad.primitive_transposes[_primitive] = _transposed
batching.primitive_batchers[_primitive] = _batched
