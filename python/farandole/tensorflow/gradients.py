"""Combine the gradients of all ranks: the common part of tapes and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from farandole import arguments
from farandole.compression import AnyCompressor
from farandole.compression import checked as checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.operations import Allreduce
from farandole.optimizer_arguments import checked_factor, parameters_by_group
from farandole.reduce_op import Average, ReduceOp
from farandole.reduce_op import checked as checked_op
from farandole.tensorflow import ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.sparse import allreduce_slices

_NAME = "gradients"


@dataclass
class GradientCombiner:
    """Combines gradients, with the arguments that tapes and optimizers share."""

    op: ReduceOp = Average
    compression: AnyCompressor = Compression.none
    process_set: Group = global_process_set
    gradient_predivide_factor: float = 1.0
    sparse_as_dense: bool = False
    scale_local_gradients: bool = True
    num_groups: int = 0
    groups: Any = None
    _local: set[int] = field(default_factory=set)  # the id() of each local variable
    _kept: list[Any] = field(default_factory=list)  # the local variables, so that no id() is reused

    def __post_init__(self) -> None:
        self.op = checked_op(self.op)
        checked_compression(self.compression)
        factor = checked_factor(self.gradient_predivide_factor, self.op)
        arguments.group_number(self.process_set)
        # All gradients are sent as one batch, so the groups are only checked.
        parameters_by_group(self.groups, self.num_groups, [], _is_variable)
        self._operation = Allreduce(self.process_set, self.op, 1 / factor, factor)

    def add_local(self, variable: Any) -> None:
        """Leave the gradient of this variable as it is on this rank."""
        self._local.add(_identity(variable))
        self._kept.append(variable)

    def is_local(self, variable: Any) -> bool:
        return _identity(variable) in self._local

    def combined(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined gradients, in one batch for the dense ones and one for the sparse
        ones. A gradient may be None. The gradients of local variables are not sent; they are
        divided by the number of members if scale_local_gradients is True."""
        results = [
            tf.convert_to_tensor(gradient)
            if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices)
            else gradient
            for gradient in gradients
        ]
        present = [i for i, gradient in enumerate(results) if gradient is not None]
        local = [i for i in present if self.is_local(variables[i])]
        sent = [i for i in present if i not in local]
        sparse = [i for i in sent if isinstance(results[i], tf.IndexedSlices)]
        dense = [i for i in sent if i not in sparse]
        if dense:
            batch = self._reduced([results[i] for i in dense])
            for i, result in zip(dense, batch, strict=True):
                results[i] = result
        if sparse:
            batch = allreduce_slices(
                [results[i] for i in sparse], self._operation, self.compression, f"{_NAME}.sparse"
            )
            for i, result in zip(sparse, batch, strict=True):
                results[i] = result
        if self.scale_local_gradients:
            for i in local:
                results[i] = _scaled(results[i], 1 / self.process_set.size())
        return results

    def _reduced(self, gradients: Sequence[Any]) -> list[Any]:
        compressor = checked_compression(self.compression)
        pairs = [compressor.compress(ops.checked_tensor(gradient)) for gradient in gradients]
        sent, contexts = zip(*pairs, strict=True)
        results = ops.run(self._operation, sent, _NAME).tensors
        return [
            compressor.decompress(result, context)
            for result, context in zip(results, contexts, strict=True)
        ]


def _is_variable(value: object) -> bool:
    return hasattr(value, "assign")


def _identity(variable: Any) -> int:
    """Return the id() of the tf.Variable; a variable of Keras has one as its value."""
    value = getattr(variable, "value", None)
    return id(variable if value is None or callable(value) else value)


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def variables_of_layers(layers: Any) -> list[Any]:
    """Return the trainable variables of a layer or of several layers."""
    if layers is None:
        return []
    found = layers if isinstance(layers, Iterable) else [layers]
    variables = []
    for layer in found:
        if not hasattr(layer, "trainable_variables"):
            raise CallError(f"local_layers must be layers; got {layer!r}")
        variables += layer.trainable_variables
    return variables
