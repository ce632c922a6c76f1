"""tf.GradientTape with the gradients of all ranks combined."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from farandole.compression import AnyCompressor
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.gradients import TensorFlowGradientFunctions
from farandole.training.gradients import GradientCombiner, variables_of_layers


class _DistributedTape(tf.GradientTape):
    """Records with another tape, and combines what gradient() of this tape returns."""

    def __init__(self, tape: Any, combiner: GradientCombiner) -> None:
        super().__init__()
        self._inner_tape, self._combiner = tape, combiner

    def register_local_source(self, source: Any) -> None:
        """Do not combine the gradient of this variable: this rank uses its own gradient. If this
        gradient has an overflow on some rank, gradient() returns an overflow on all ranks, so that
        a LossScaleOptimizer skips the same steps on all ranks. The program
        must not clip by a norm of all gradients, because this norm would differ by rank.
        """
        self._combiner.add_local_variable(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Return the gradients of tf.GradientTape.gradient(), combined over all members.

        All members must call it for the same variables. `use_generic_names` is ignored; scripts
        that were written for Horovod pass it.
        """
        own_gradients = self._inner_tape.gradient(
            target, sources, output_gradients, unconnected_gradients
        )
        combine = (
            self._combiner.combine_gradients_and_overflow
            if self._combiner.has_local_variables
            else self._combiner.combine_gradients
        )
        combined = combine(tf.nest.flatten(own_gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, combined)

    def __enter__(self) -> Any:
        self._inner_tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner_tape.__exit__(*error)

    def watch(self, tensor: Any) -> None:
        self._inner_tape.watch(tensor)

    def watched_variables(self) -> Any:
        return self._inner_tape.watched_variables()

    def stop_recording(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._inner_tape.stop_recording()
        return context

    def reset(self) -> None:
        self._inner_tape.reset()

    def jacobian(self, *args: Any, **options: Any) -> Any:
        """Return the Jacobian of this rank. It is not combined."""
        return self._inner_tape.jacobian(*args, **options)

    def batch_jacobian(self, *args: Any, **options: Any) -> Any:
        """Return the Jacobians of this rank. They are not combined."""
        return self._inner_tape.batch_jacobian(*args, **options)


# size waiver: Horovod's arguments
def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Group = global_process_set,
    scale_local_gradients: bool = True,
) -> _DistributedTape:
    """Return a tape whose gradient() combines the gradients of all ranks.

    Args:
        gradtape: A tf.GradientTape, before or after its recording.
        device_dense: Ignored, like device_sparse. Scripts that were written for Horovod pass it.
        device_sparse: Ignored.
        compression: The form in which gradients are sent, such as Compression.fp16.
        sparse_as_dense: Convert each tf.IndexedSlices to a dense tensor before it is sent. This
            saves time if most rows have a gradient.
        op: How the gradients are combined.
        gradient_predivide_factor: For Average: the gradients are divided by this number before the
            sum. The sum is multiplied by this number and divided by the number of members.
        num_groups: Checked and not used, like groups, because all gradients are one batch.
        groups: Checked and not used.
        process_set: The group; by default all ranks. A rank outside of it gets its own gradients.
        scale_local_gradients: Whether the gradients of the variables that were passed to
            register_local_source() are divided by the number of members.

    Raises:
        CallError: An argument is wrong.

    Example::

        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(model(images), labels)
        gradients = tape.gradient(loss, model.trainable_variables)
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise CallError(f"gradtape must be a tf.GradientTape; got {gradtape!r}")
    if isinstance(gradtape, _DistributedTape):
        raise CallError("gradtape is already distributed: pass the tf.GradientTape itself")
    return _DistributedTape(
        gradtape,
        GradientCombiner(
            TensorFlowGradientFunctions(),
            op,
            compression,
            process_set,
            gradient_predivide_factor,
            sparse_as_dense,
            scale_local_gradients,
            num_groups,
            groups,
        ),
    )


# size waiver: Horovod's arguments
def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Group = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> _DistributedTape:
    """Return a DistributedGradientTape() that does not combine the gradients of `local_layers`,
    which is a built layer or a list of built layers. The other arguments are the same."""
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape
