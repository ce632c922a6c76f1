"""Combine the gradients of all ranks: TensorFlow's part of farandole.training.gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole import arguments, lifecycle
from farandole.compression import AnyCompressor
from farandole.group import Group, global_process_set
from farandole.operations import Allgather, Allreduce
from farandole.tensorflow import ops
from farandole.tensorflow.operations import run
from farandole.tensorflow.sparse import allreduce_slices
from farandole.training.gradients import DIFFERENT_KINDS, NAME, Kind, check_kinds


class TensorFlowGradients:
    """Implements farandole.training.gradients.GradientFunctions. Sparse gradients are
    tf.IndexedSlices."""

    def if_member(
        self,
        group: Group,
        gradients: Sequence[Any],
        together: Callable[[], list[Any]],
        alone: Callable[[], list[Any]],
    ) -> list[Any]:
        if tf.executing_eagerly():
            return alone() if group.included() is False else together()
        if group is global_process_set or (
            # When the job is formed again, another group may get the number of this one.
            group.was_added if lifecycle.is_elastic() else group.included() is not False
        ):
            return together()
        # The function or graph may outlive the job, and this rank may become a member, or no longer
        # be one. So each run asks again.
        is_member = tf.equal(ops.query("included", arguments.group_number(group)), 1)
        results: list[Any] = tf.cond(is_member, together, alone)
        return results

    def same_on_all(
        self,
        gradients: Sequence[Any],
        kinds: Sequence[Kind],
        group: Group,
        variables: Sequence[Any],
    ) -> list[Any]:
        own = tf.constant([kinds], tf.uint8)
        [found] = run(Allgather(group), [own], ops.name_of_our_own(f"{NAME}.kinds"))
        if tf.executing_eagerly():
            check_kinds(
                dict(zip(group.ranks or [], found.numpy().tolist(), strict=False)), variables
            )
            return list(gradients)
        same = tf.reduce_all(tf.equal(found, own))
        with tf.control_dependencies([tf.debugging.Assert(same, [DIFFERENT_KINDS, found])]):
            # Of tf.IndexedSlices, only the values wait until then: they are sent in one batch with
            # the indices.
            return [
                tf.IndexedSlices(tf.identity(part.values), part.indices, part.dense_shape)
                if self.is_sparse(part)
                else tf.identity(part)
                for part in gradients
            ]

    def reduce(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        return run(operation, gradients, ops.name_of_our_own(NAME), compression)

    def reduce_sparse(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        name = ops.name_of_our_own(f"{NAME}.sparse")
        return allreduce_slices(gradients, operation, compression, name)

    def is_sparse(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices)

    def dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)

    def scaled(self, gradient: Any, factor: Any) -> Any:
        if self.is_sparse(gradient):
            values = gradient.values * tf.cast(factor, gradient.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(factor, gradient.dtype)

    def overflow(self, gradients: Sequence[Any]) -> Any:
        parts = [part.values if self.is_sparse(part) else part for part in gradients]
        finite = [
            tf.reduce_all(tf.math.is_finite(part)) for part in parts if part.dtype.is_floating
        ]
        all_finite = tf.reduce_all(finite) if finite else True
        return tf.cast(tf.logical_not(all_finite), tf.float32)

    def with_overflow(self, gradient: Any, overflow: Any) -> Any:
        return self.scaled(gradient, tf.where(overflow > 0, float("inf"), 1.0))

    def members(self, group: Group) -> Any:
        if tf.executing_eagerly():
            return group.size()
        return tf.cast(ops.query("size", arguments.group_number(group)), tf.float64)

    def variable_of(self, variable: Any) -> Any:
        value = getattr(variable, "value", None)  # a variable of Keras has a tf.Variable as value
        return variable if value is None or callable(value) else value
