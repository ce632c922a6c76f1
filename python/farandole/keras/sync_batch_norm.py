"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.keras.backend import frontend
from farandole.reduce_op import Sum


@keras.saving.register_keras_serializable("farandole")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A keras.layers.BatchNormalization that, in training, uses the mean and the variance of the
    batches of all ranks together. The ranks may have different numbers of examples.

    Args:
        fused: Must be False. Scripts that were written for Horovod pass it.
        process_set: The group; by default all ranks. It is not saved: copies of the layer, and
            layers of models from files, use all ranks.
        options: The arguments of keras.layers.BatchNormalization.

    Raises:
        CallError: `fused` is True.
    """

    def __init__(
        self, fused: bool = False, process_set: Group = global_process_set, **options: Any
    ) -> None:
        if fused:
            raise CallError("SyncBatchNormalization has no fused form: leave out fused=True")
        super().__init__(**options)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = list(self._reduction_axes)
        # Numbers that the mask excludes may be NaN, so they are replaced by 0.
        elementwise_mask = None if mask is None else _elementwise_mask(mask, inputs)

        def apply_mask(tensor: Any) -> Any:
            return tensor if elementwise_mask is None else ops.where(elementwise_mask, tensor, 0)

        count, total = (
            ops.sum(apply_mask(ops.ones_like(inputs)), axes),
            ops.sum(apply_mask(inputs), axes),
        )
        count, total = ops.split(self._sum_over_ranks(ops.concatenate([count, total])), 2)
        count = ops.maximum(count, 1.0)
        mean = total / count
        shape = [1 if axis in axes else -1 for axis in range(len(inputs.shape))]
        squares = ops.square(apply_mask(inputs - ops.reshape(mean, shape)))
        return mean, self._sum_over_ranks(ops.sum(squares, axes)) / count

    def _sum_over_ranks(self, tensor: Any) -> Any:
        if str(getattr(tensor, "device", "")) == "meta":  # Keras only asks for the shape
            return tensor
        return frontend().allreduce(tensor, op=Sum, process_set=self._process_set)


def _elementwise_mask(mask: Any, inputs: Any) -> Any:
    return ops.cast(ops.broadcast_to(ops.expand_dims(mask, -1), ops.shape(inputs)), "bool")
