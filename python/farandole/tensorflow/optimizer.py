"""Optimizers of TensorFlow and of Keras with the gradients of all ranks combined."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import tensorflow as tf

from farandole import lifecycle
from farandole.compression import AnyCompressor
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp
from farandole.tensorflow.accumulation import GradientAccumulator
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.gradients import TensorFlowGradientFunctions
from farandole.training.gradients import GradientCombiner
from farandole.training.optimizer_arguments import checked_optimizer_op, checked_passes

_V1Optimizer: Any = tf.compat.v1.train.Optimizer  # the optimizers of TensorFlow 1


class _DistributedOptimizer(_V1Optimizer):
    """Computes gradients with another optimizer of TensorFlow 1, combines them, and lets that
    optimizer apply them."""

    def __init__(
        self,
        optimizer: Any,
        combiner: GradientCombiner,
        accumulator: GradientAccumulator | None,
        name: str | None,
        use_locking: bool,
    ) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._inner_optimizer, self._combiner, self._accumulator = optimizer, combiner, accumulator

    def register_local_var(self, variable: Any) -> None:
        """Do not combine the gradient of this variable: this rank uses its own gradient."""
        self._combiner.add_local_variable(variable)

    def compute_gradients(self, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a combined gradient and its variable."""
        pairs = self._inner_optimizer.compute_gradients(*args, **options)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        combiner = self._accumulator or self._combiner
        return list(zip(combiner.combine_gradients(gradients, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Apply the gradients that compute_gradients() has returned. If the optimizer adds up the
        gradients of several passes, apply the sums after the last pass. Add 1 to `global_step` in
        each pass."""

        def apply() -> Any:
            return self._inner_optimizer.apply_gradients(grads_and_vars, global_step, name)

        def count_pass() -> Any:
            return None if global_step is None else tf.compat.v1.assign_add(global_step, 1)

        return (
            apply()
            if self._accumulator is None
            else self._accumulator.run_after_pass(apply, count_pass)
        )

    def get_slot(self, *args: Any, **options: Any) -> Any:
        return self._inner_optimizer.get_slot(*args, **options)

    def get_slot_names(self, *args: Any, **options: Any) -> Any:
        return self._inner_optimizer.get_slot_names(*args, **options)

    def variables(self, *args: Any, **options: Any) -> Any:
        return self._inner_optimizer.variables(*args, **options)


# size waiver: Horovod's arguments
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Group = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that combines the gradients of all ranks before it applies them.

    Args:
        optimizer: An optimizer of tf.compat.v1.train, or of Keras 3. For an optimizer of Keras 3,
            this function is farandole.keras.DistributedOptimizer().
        name: The name of the optimizer.
        use_locking: For optimizers of tf.compat.v1.train: the argument of their base class.
        device_dense: Ignored, like device_sparse. Scripts that were written for Horovod pass it.
        device_sparse: Ignored.
        compression: The form in which gradients are sent, such as Compression.fp16.
        sparse_as_dense: Convert each tf.IndexedSlices to a dense tensor before it is sent.
        backward_passes_per_step: Add up the gradients of this many passes, then send and apply
            them. In an elastic job, only optimizers of Keras 3 can do this.
        op: Average or Sum.
        gradient_predivide_factor: For Average: the gradients are divided by this number before the
            sum. The sum is multiplied by this number and divided by the number of members.
        average_aggregated_gradients: Whether the gradients of several passes are averaged. If not,
            they are added up.
        num_groups: Checked and not used, like groups, because all gradients are one batch.
        groups: Checked and not used.
        process_set: The group; by default all ranks. A rank outside of it gets its own gradients.
        scale_local_gradients: Whether the gradients of the variables that were passed to
            register_local_var() are divided by the number of members.

    Raises:
        CallError: An argument is wrong, or `optimizer` is of another kind.
    """
    checked_optimizer_op(op)
    if _is_of_keras(optimizer):
        # Import farandole.keras only here, because most programs need no Keras.
        return importlib.import_module("farandole.keras").DistributedOptimizer(
            optimizer,
            name=name,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if not isinstance(optimizer, _V1Optimizer) or isinstance(optimizer, _DistributedOptimizer):
        raise CallError(
            "optimizer must be an optimizer of Keras 3 or of tf.compat.v1.train that is not "
            f"distributed yet; got {optimizer!r}"
        )
    passes = checked_passes(backward_passes_per_step)
    if passes > 1 and lifecycle.is_elastic():
        raise CallError(
            f"backward_passes_per_step is {passes}, but in an elastic job, an optimizer of "
            "tf.compat.v1.train cannot add up gradients, because the sums would not return to the "
            "last commit: use an optimizer of Keras 3"
        )
    combiner = GradientCombiner(
        TensorFlowGradientFunctions(),
        op,
        compression,
        process_set,
        gradient_predivide_factor,
        sparse_as_dense,
        scale_local_gradients,
        num_groups,
        groups,
    )
    accumulator = (
        GradientAccumulator(combiner, passes, average_aggregated_gradients) if passes > 1 else None
    )
    return _DistributedOptimizer(optimizer, combiner, accumulator, name, use_locking)


def _is_of_keras(optimizer: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(optimizer, keras.optimizers.Optimizer)
