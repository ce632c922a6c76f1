"""Optimizers of Keras with the gradients of all ranks combined.

The optimizer keeps its class. A GradientHook replaces its methods apply() and stateless_apply();
the trainers of all backends call one of these two. The hook combines the gradients and then calls
the method of the class.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

from farandole.compression import AnyCompressor, NoneCompressor
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.keras.backend import (
    drop_compiled_step,
    gradient_functions,
    outside_compiler,
)
from farandole.keras.no_xla import check_no_xla, disable_auto_xla
from farandole.reduce_op import Average, ReduceOp
from farandole.training.gradients import GradientCombiner, variables_of_layers
from farandole.training.optimizer_arguments import checked_optimizer_op, checked_passes


class GradientHook:
    """Replaces methods of one optimizer, so that the optimizer combines gradients."""

    def __init__(
        self, optimizer: Any, combiner: GradientCombiner, expects_scaled_loss: bool = False
    ) -> None:
        """If `expects_scaled_loss`, warn if scale_loss() is not called before the first update."""
        self._optimizer, self._combiner = optimizer, combiner
        # True while stateless_apply() of the class runs: this method calls apply(), which must not
        # combine the gradients again.
        self._has_combined = False
        # An optimizer that is already built may be part of a compiled step of a model. That step
        # does not combine gradients.
        self.may_have_old_step = bool(optimizer.built)
        self._expects_scaled_loss = expects_scaled_loss
        self._combine_outside_compiler = outside_compiler(self._combine)

    def install(self) -> None:
        self._optimizer.apply = self.apply
        self._optimizer.stateless_apply = self.stateless_apply
        self._optimizer.register_local_var = self.register_local_var
        if self._expects_scaled_loss:
            self._optimizer.scale_loss = self.scale_loss
        # Keras copies an optimizer by pickling it. A pickle contains only the class, so the copy
        # would lack the methods of this hook.
        self._optimizer.__reduce__ = self.reduce_for_pickle
        self._optimizer.from_config = self.from_config

    def register_local_var(self, variable: Any) -> None:
        """Do not combine the gradient of this variable: this rank uses its own gradient."""
        self._check_local_clipping()
        self._combiner.add_local_variable(variable)

    def _check_local_clipping(self) -> None:
        if any(
            optimizer.global_clipnorm is not None
            for optimizer in _updating_optimizers(self._optimizer)
        ):
            raise CallError(
                "an optimizer with global_clipnorm cannot have local variables: the norm would "
                "include their gradients, which differ by rank, so the ranks would clip the shared "
                "gradients by different factors; use clipnorm or clipvalue"
            )

    def local_variables(self, variables: Sequence[Any]) -> list[Any]:
        """Return the local variables among `variables`, and the variables that the optimizer keeps
        for each local variable, such as its momentum."""
        result_variables = list(filter(self._combiner.is_local_variable, variables))
        for optimizer in _updating_optimizers(self._optimizer):
            trained_variables = optimizer._trainable_variables
            # An optimizer of Keras keeps a list of momenta, for example. Each such list is as long
            # as the list of trained variables.
            variable_lists = [
                value
                for name, value in vars(optimizer).items()
                if isinstance(value, list)
                and len(value) == len(trained_variables)
                and name not in ("_variables", "_trainable_variables")
            ]
            indices = [
                i
                for i, variable in enumerate(trained_variables)
                if self._combiner.is_local_variable(variable)
            ]
            slot_variables = [values[i] for values in variable_lists for i in indices]
            result_variables += [
                variable for variable in slot_variables if isinstance(variable, keras.Variable)
            ]
        return result_variables

    def scale_loss(self, loss: Any) -> Any:
        self._expects_scaled_loss = False
        return type(self._optimizer).scale_loss(self._optimizer, loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        class_apply = type(self._optimizer).apply
        if self._has_combined:
            return class_apply(self._optimizer, grads, trainable_variables)
        self._check_not_inside_loss_scaling(sys._getframe(1).f_locals.get("self"))
        check_no_xla(self._optimizer)
        # Only the trainer for JAX passes no variables to apply(). This trainer has built the
        # optimizer before this call, so the optimizer knows its variables.
        given_variables = None if trainable_variables is None else list(trainable_variables)
        combined_gradients = self._combine_outside_compiler(
            grads, given_variables or self._optimizer._trainable_variables
        )
        return class_apply(self._optimizer, combined_gradients, given_variables)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> Any:
        self._check_not_inside_loss_scaling(sys._getframe(1).f_locals.get("self"))
        combined_gradients = self._combine_outside_compiler(
            grads, self._optimizer._trainable_variables
        )
        self._has_combined = True
        try:
            return type(self._optimizer).stateless_apply(
                self._optimizer, optimizer_variables, combined_gradients, trainable_variables
            )
        finally:
            self._has_combined = False

    def _combine(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        gradients = list(grads)
        if len(gradients) != len(variables):
            raise CallError(
                f"the number of gradients is {len(gradients)}, that of variables {len(variables)}: "
                "give a gradient, or None, for each variable"
            )
        if self._expects_scaled_loss:
            self._expects_scaled_loss = False
            warnings.warn(
                "with the dtype policy mixed_float16, the distributed optimizer is a "
                "LossScaleOptimizer, which divides the gradients by its scale, but the loss was "
                "not scaled: compute the gradients of optimizer.scale_loss(loss)",
                stacklevel=4,
            )
        if self._combiner.has_local_variables:
            # A MultiOptimizer may have made more optimizers after the variables were registered.
            self._check_local_clipping()
            if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
                return self._combiner.combine_gradients_and_overflow(gradients, variables)
        return self._combiner.combine_gradients(gradients, variables)

    def _check_not_inside_loss_scaling(self, caller: Any) -> None:
        """Raise CallError if this is the inner optimizer of a LossScaleOptimizer. The outer
        optimizer calls the inner one only if the gradients of this rank are finite, so the ranks
        would make different calls."""
        is_loss_scaling = isinstance(caller, keras.optimizers.LossScaleOptimizer)
        if is_loss_scaling and caller is not self._optimizer:
            raise CallError(
                "the optimizer inside the LossScaleOptimizer is distributed: distribute the outer "
                "one, hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
            )

    def from_config(self, *args: Any, **options: Any) -> Any:
        """Return another distributed optimizer of this class."""
        optimizer = type(self._optimizer).from_config(*args, **options)
        GradientHook(optimizer, self._combiner, self._expects_scaled_loss).install()
        return optimizer

    def reduce_for_pickle(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._combiner.has_local_variables:
            raise CallError(
                "an optimizer with local variables cannot be copied, because the copy would not "
                "know them: make a new optimizer, and register them there"
            )
        optimizer_class: Any = type(self._optimizer)
        make_optimizer, arguments = optimizer_class.__reduce__(self._optimizer)
        return _unpickle_distributed, (
            self._combiner,
            make_optimizer,
            arguments,
            self._expects_scaled_loss,
        )


def _unpickle_distributed(
    combiner: GradientCombiner,
    make_optimizer: Callable[..., Any],
    arguments: tuple[Any, ...],
    expects_scaled_loss: bool,
) -> Any:
    optimizer = make_optimizer(*arguments)
    GradientHook(optimizer, combiner, expects_scaled_loss).install()
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    return _hook_of(optimizer) is not None


def drop_old_step(model: Any, optimizers: Sequence[Any]) -> None:
    """The model may have compiled its step before DistributedOptimizer() was called for one of its
    optimizers. Such a step does not combine gradients, so let the model compile its step again."""
    hooks = [hook for hook in map(_hook_of, optimizers) if hook is not None]
    if not any(hook.may_have_old_step for hook in hooks):
        return
    for hook in hooks:
        hook.may_have_old_step = False
    if getattr(model, "train_function", None) is None:
        return
    drop_compiled_step(model)
    model.make_train_function()  # fit() called it before, and will not call it again


def local_variables_of(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the variables that are local on this rank, and the variables that the optimizer keeps
    for each of them."""
    hook = _hook_of(optimizer)
    return [] if hook is None else hook.local_variables(variables)


def _updating_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that update variables. A LossScaleOptimizer contains one such
    optimizer, and a MultiOptimizer contains several."""
    inner_optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner_optimizer, "optimizers", [inner_optimizer]))


def _hook_of(optimizer: Any) -> GradientHook | None:
    owner = getattr(getattr(optimizer, "apply", None), "__self__", None)
    return owner if isinstance(owner, GradientHook) else None


# size waiver: Horovod's arguments
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Group = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer combine the gradients of all ranks before it applies them, and return it.

    The optimizer keeps its class, and copies of it combine gradients, too. But a model that is
    loaded by keras.models.load_model() has a new optimizer, which does not combine gradients: use
    load_model() of this module. With the dtype policy "mixed_float16", the result is a
    LossScaleOptimizer around the optimizer, which compile() would otherwise add. A custom training
    loop must then compute the gradients of optimizer.scale_loss(loss).

    Args:
        optimizer: An optimizer of Keras 3.
        name: Ignored, like device_dense and device_sparse. Scripts that were written for Horovod
            pass it.
        device_dense: Ignored.
        device_sparse: Ignored.
        compression: The form in which gradients are sent, such as Compression.fp16.
        sparse_as_dense: With TensorFlow: convert each tf.IndexedSlices to a dense tensor before it
            is sent.
        gradient_predivide_factor: For Average: the gradients are divided by this number before the
            sum. The sum is multiplied by this number and divided by the number of members.
        op: Average or Sum.
        backward_passes_per_step: Add up the gradients of this many batches, then apply them. This
            sets gradient_accumulation_steps of the optimizer. The gradients of each batch are sent.
            It must be 1 for a MultiOptimizer: give gradient_accumulation_steps to its optimizers.
        average_aggregated_gradients: Whether the gradients of several batches are averaged. If not,
            they are added up.
        num_groups: Checked and not used, like groups, because all gradients are one batch.
        groups: Checked and not used.
        process_set: The group; by default all ranks. A rank outside of it gets its own gradients.
        scale_local_gradients: Whether the gradients of the variables that were passed to
            register_local_var() are divided by the number of members.

    Raises:
        CallError: An argument is wrong, or the optimizer is distributed already.

    Example::

        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.001)), loss="mse")
    """
    _check_optimizer(optimizer)
    passes = checked_passes(backward_passes_per_step)
    combiner = GradientCombiner(
        gradient_functions(),
        checked_optimizer_op(op),
        compression,
        process_set,
        gradient_predivide_factor,
        sparse_as_dense,
        scale_local_gradients,
        num_groups,
        groups,
    )
    if passes > 1:
        _set_accumulation(optimizer, passes)
        if not average_aggregated_gradients:
            # Keras averages the gradients of the passes, so multiply the average by `passes` to get
            # the sum.
            combiner.multiply_by(passes)
    is_loss_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    needs_loss_scaling = not is_loss_scaling and keras.config.dtype_policy().name == "mixed_float16"
    if needs_loss_scaling:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    GradientHook(optimizer, combiner, expects_scaled_loss=needs_loss_scaling).install()
    disable_auto_xla(is_distributed)
    return optimizer


# size waiver: Horovod's arguments
def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: Group = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a DistributedOptimizer() that does not combine the gradients of `local_layers`, which
    is a built layer or a list of built layers. The other arguments are the same."""
    local_variables = variables_of_layers(local_layers)
    distributed_optimizer = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        0,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local_variables:
        distributed_optimizer.register_local_var(variable)
    return distributed_optimizer


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise CallError(
            "optimizer must be an optimizer of Keras 3, such as keras.optimizers.Adam(0.001); got "
            f"{optimizer!r}"
        )
    if is_distributed(optimizer):
        raise CallError(
            "the optimizer is distributed already, so its gradients would be combined twice: call "
            "DistributedOptimizer() once"
        )


def _set_accumulation(optimizer: Any, passes: int) -> None:
    inner_optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    # A MultiOptimizer may make some of its optimizers later, so this function cannot set the number
    # in all of them.
    if hasattr(inner_optimizer, "optimizers"):
        raise CallError(
            f"backward_passes_per_step is {passes}, but a MultiOptimizer does not accumulate "
            f"gradients: give gradient_accumulation_steps={passes} to each of its optimizers, "
            "which then average the gradients of several batches"
        )
    # The number may be the right one already, for example because load_model() has restored it.
    if inner_optimizer.gradient_accumulation_steps == passes:
        return
    if inner_optimizer.built:
        raise CallError(
            "backward_passes_per_step must be set before the optimizer is built: call "
            "DistributedOptimizer() before compile() and fit()"
        )
    if inner_optimizer.gradient_accumulation_steps is not None:
        raise CallError(
            f"backward_passes_per_step is {passes}, but gradient_accumulation_steps of the "
            f"optimizer is {inner_optimizer.gradient_accumulation_steps}: give one of them"
        )
    inner_optimizer.gradient_accumulation_steps = passes
