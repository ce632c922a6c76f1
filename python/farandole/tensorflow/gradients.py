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
from farandole.training.gradients import CALL_NAME, DIFFERENT_KINDS_TEXT, Kind, check_kinds


class TensorFlowGradientFunctions:
    """Implements farandole.training.gradients.GradientFunctions. Sparse gradients are
    tf.IndexedSlices."""

    def combine_if_member(
        self,
        group: Group,
        gradients: Sequence[Any],
        combine: Callable[[], list[Any]],
        keep_own: Callable[[], list[Any]],
    ) -> list[Any]:
        if tf.executing_eagerly():
            return keep_own() if group.included() is False else combine()
        if group is global_process_set or (
            # When an elastic job is formed again, a group of add_process_set() ends, and another
            # group may get its number. So a later run cannot use the number to ask whether this
            # rank is a member.
            group.was_added if lifecycle.is_elastic() else group.included() is not False
        ):
            return combine()
        # The function or graph may run again in a later job. There, this rank may or may not be a
        # member of the group. So each run asks whether this rank is a member.
        is_member = tf.equal(ops.query("included", arguments.group_number(group)), 1)
        results: list[Any] = tf.cond(is_member, combine, keep_own)
        return results

    def with_checked_kinds(
        self,
        gradients: Sequence[Any],
        kinds: Sequence[Kind],
        group: Group,
        variables: Sequence[Any],
    ) -> list[Any]:
        own_kinds = tf.constant([kinds], tf.uint8)
        [gathered_kinds] = run(
            Allgather(group), [own_kinds], ops.generated_name(f"{CALL_NAME}.kinds")
        )
        if tf.executing_eagerly():
            check_kinds(
                dict(zip(group.ranks or [], gathered_kinds.numpy().tolist(), strict=False)),
                variables,
            )
            return list(gradients)
        are_same = tf.reduce_all(tf.equal(gathered_kinds, own_kinds))
        with tf.control_dependencies(
            [tf.debugging.Assert(are_same, [DIFFERENT_KINDS_TEXT, gathered_kinds])]
        ):
            # It is enough that the values of a tf.IndexedSlices wait for the check: the indices are
            # sent in the same batch, so they are not sent before the values.
            return [
                tf.IndexedSlices(
                    tf.identity(gradient.values), gradient.indices, gradient.dense_shape
                )
                if self.is_sparse(gradient)
                else tf.identity(gradient)
                for gradient in gradients
            ]

    def reduce(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        return run(operation, gradients, ops.generated_name(CALL_NAME), compression)

    def reduce_sparse(
        self, gradients: Sequence[Any], operation: Allreduce, compression: AnyCompressor
    ) -> list[Any]:
        name = ops.generated_name(f"{CALL_NAME}.sparse")
        return allreduce_slices(gradients, operation, compression, name)

    def is_sparse(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices)

    def to_dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)

    def scaled(self, gradient: Any, factor: Any) -> Any:
        if self.is_sparse(gradient):
            values = gradient.values * tf.cast(factor, gradient.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(factor, gradient.dtype)

    def overflow_of(self, gradients: Sequence[Any]) -> Any:
        tensors = [
            gradient.values if self.is_sparse(gradient) else gradient for gradient in gradients
        ]
        are_finite = [
            tf.reduce_all(tf.math.is_finite(tensor))
            for tensor in tensors
            if tensor.dtype.is_floating
        ]
        all_finite = tf.reduce_all(are_finite) if are_finite else True
        return tf.cast(tf.logical_not(all_finite), tf.float32)

    def with_overflow(self, gradient: Any, has_overflow: Any) -> Any:
        return self.scaled(gradient, tf.where(has_overflow, float("inf"), 1.0))

    def member_count(self, group: Group) -> Any:
        if tf.executing_eagerly():
            return group.size()
        return tf.cast(ops.query("size", arguments.group_number(group)), tf.float64)

    def underlying_variable(self, variable: Any) -> Any:
        value = getattr(variable, "value", None)  # for a variable of Keras: its tf.Variable
        return variable if value is None or callable(value) else value
