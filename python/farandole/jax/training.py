"""Average gradients over all ranks: around an optimizer of optax, or around jax.grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from farandole.compression import AnyCompressor
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.jax.compression import Compression
from farandole.jax.operations import allreduce
from farandole.reduce_op import Average, ReduceOp

Optimizer = TypeVar("Optimizer")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
    *,
    op: ReduceOp = Average,
    compression: AnyCompressor = Compression.none,
    name: str = "gradients",
    process_set: Group = global_process_set,
) -> Optimizer:
    """Return an optimizer that first combines the gradients of all ranks, in one call.

    Args:
        optimizer: An `optax.GradientTransformation`. To combine only every k-th step, wrap the
            result in `optax.MultiSteps`.
        op: How the gradients are combined.
        compression: The form in which they are sent, such as Compression.fp16.
        name: The name of the call in errors, reports and the timeline.
        process_set: The group; by default all ranks.

    Raises:
        CallError: The optimizer has no `init` and `update`.

    Example::

        optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
        updates, state = optimizer.update(gradients, state, params)
    """
    update = getattr(optimizer, "update", None)
    if update is None or not hasattr(optimizer, "_replace"):
        raise CallError(
            "optimizer must be an optax.GradientTransformation, such as optax.sgd(0.1); got a "
            f"{type(optimizer).__name__}"
        )

    def update_together(gradients: Any, *args: Any, **options: Any) -> Any:
        combined = allreduce(
            gradients, name=name, compression=compression, op=op, process_set=process_set
        )
        return update(combined, *args, **options)

    return optimizer._replace(update=update_together)


# size waiver: the arguments of jax.value_and_grad, and those of DistributedOptimizer
def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    op: ReduceOp = Average,
    compression: AnyCompressor = Compression.none,
    name: str = "gradients",
    process_set: Group = global_process_set,
) -> Callable[..., Any]:
    """Return what jax.value_and_grad(function) returns, with the gradients of all ranks combined.

    The value stays that of this rank: `hvd.allreduce(value)` averages it. The arguments are those
    of jax.value_and_grad and of DistributedOptimizer().

    Example::

        loss, gradients = jax.jit(hvd.value_and_grad(loss_of))(params, batch)
    """
    local = jax.value_and_grad(function, argnums, has_aux)

    def value_and_combined_gradients(*args: Any, **options: Any) -> Any:
        value, gradients = local(*args, **options)
        combined = allreduce(
            gradients, name=name, compression=compression, op=op, process_set=process_set
        )
        return value, combined

    return value_and_combined_gradients


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Return what jax.grad(function) returns, with the gradients of all ranks combined.

    The options are those of value_and_grad().
    """
    with_value = value_and_grad(function, argnums, has_aux, **options)

    def combined_gradients(*args: Any, **keywords: Any) -> Any:
        value, gradients = with_value(*args, **keywords)
        return (gradients, value[1]) if has_aux else gradients

    return combined_gradients
