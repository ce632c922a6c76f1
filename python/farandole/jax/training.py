"""Average gradients over all ranks: around an optimizer of optax, or around jax.grad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from farandole import lifecycle
from farandole.compression import AnyCompressor
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.jax.compression import Compression
from farandole.jax.operations import allreduce
from farandole.reduce_op import Average, AverageOfPresent, ReduceOp, Sum

Optimizer = TypeVar("Optimizer")


def combines_gradients(gradients: Any, group: Group) -> bool:
    """Return whether this rank combines its gradients, a pytree, with those of other ranks. A rank
    outside of the group keeps its own gradients. The exception is a program that is compiled in an
    elastic job: such a program would not notice if the rank became a member later. So the program
    makes the call even outside of the group, and the call raises an error."""
    if group.included() is not False:
        return True
    leaves = jax.tree.leaves(gradients) if lifecycle.is_elastic() else []
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@dataclass(frozen=True)
class _GradientCombination:
    """How an optimizer combines the gradients and the losses of all ranks."""

    op: ReduceOp
    compression: AnyCompressor
    name: str
    process_set: Group

    def combine_gradients(self, gradients: Any) -> Any:
        return allreduce(
            gradients,
            name=self.name,
            compression=self.compression,
            op=self.op,
            process_set=self.process_set,
        )

    def combine_loss(self, loss: Any) -> Any:
        op = self.op if self.op in (Sum, AverageOfPresent) else Average
        return allreduce(loss, name=f"{self.name}.loss", op=op, process_set=self.process_set)

    def combine_arguments(self, gradients: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Combine the gradients and the arguments of optax's update(), and return both."""
        options = dict(options)
        own_gradients, given_gradients = gradients, options.get("grad")
        # `grad` is usually the same object as the first argument. Then pass None in place of
        # `grad`, so that the object is sent only once: None is a pytree without arrays.
        gradients, combined_grad = self.combine_gradients(
            (own_gradients, None if given_gradients is own_gradients else given_gradients)
        )
        if "grad" in options:
            options["grad"] = gradients if given_gradients is own_gradients else combined_grad
        for key, combine in (
            ("value", self.combine_loss),
            ("value_fn", self._with_combined_loss),
            ("obj_fn", self._with_combined_loss),
            ("grad_fn", self._with_combined_gradients),
        ):
            if options.get(key) is not None:
                options[key] = combine(options[key])
        return gradients, options

    def _with_combined_gradients(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def combined_function(*args: Any, **options: Any) -> Any:
            return self.combine_gradients(function(*args, **options))

        return combined_function

    def _with_combined_loss(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes the combined loss. JAX computes its derivatives with
        respect to the parameters, which are the same on all ranks."""

        @jax.custom_jvp
        def shared_params(params: Any) -> Any:
            return params

        @shared_params.defjvp
        def derivative(params: Any, tangents: Any) -> Any:
            # The tangents are equal on all ranks, so this allreduce does not change them. JAX also
            # transposes this allreduce: the transpose averages the gradients.
            name = f"{self.name}.loss_gradients"
            return params[0], allreduce(tangents[0], name=name, process_set=self.process_set)

        @functools.wraps(function)  # optax reads the argument names of `function`
        def combined_function(params: Any, *args: Any, **options: Any) -> Any:
            return self.combine_loss(function(shared_params(params), *args, **options))

        return combined_function


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
    *,
    op: ReduceOp = Average,
    compression: AnyCompressor = Compression.none,
    name: str = "gradients",
    process_set: Group = global_process_set,
) -> Optimizer:
    """Return an optimizer that first combines the gradients of all ranks, in one call.

    Some optimizers also use the loss: update() gets it in the arguments `value`, `grad`,
    `value_fn`, `obj_fn` or `grad_fn`. Gradients in these arguments, or in the results of these
    functions, are combined like the gradients of the step. Losses are summed if op is Sum, and
    averaged otherwise. Other arguments of update() must be the same on all ranks. With
    optax.value_and_grad_from_state(), op must be Average, because the state has results that are
    already combined.

    Args:
        optimizer: An `optax.GradientTransformation`. To accumulate the gradients of k steps,
            wrap the result in `optax.MultiSteps`.
        op: How the gradients are combined.
        compression: The form in which they are sent, such as Compression.fp16.
        name: The name of the call in errors, reports and the timeline.
        process_set: The group; by default all ranks. A rank outside of it gets its own gradients.
            In an elastic job, compiled functions raise an error there instead.

    Raises:
        CallError: `optimizer` is not an optax.GradientTransformation.

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

    combination = _GradientCombination(op, compression, name, process_set)

    def update_together(gradients: Any, *args: Any, **options: Any) -> Any:
        if combines_gradients(gradients, process_set):
            gradients, options = combination.combine_arguments(gradients, options)
        return update(gradients, *args, **options)

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
    own_value_and_grad = jax.value_and_grad(function, argnums, has_aux)

    def value_and_combined_gradients(*args: Any, **options: Any) -> Any:
        value, gradients = own_value_and_grad(*args, **options)
        if combines_gradients(gradients, process_set):
            gradients = allreduce(
                gradients, name=name, compression=compression, op=op, process_set=process_set
            )
        return value, gradients

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
    combined_value_and_grad = value_and_grad(function, argnums, has_aux, **options)

    def combined_gradients(*args: Any, **keywords: Any) -> Any:
        value, gradients = combined_value_and_grad(*args, **keywords)
        return (gradients, value[1]) if has_aux else gradients

    return combined_gradients
