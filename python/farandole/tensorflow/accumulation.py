"""Add up the gradients of several passes, and send only the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.errors import CallError
from farandole.training.gradients import GradientCombiner


class GradientAccumulator:
    """Adds up the gradients of `passes` calls of combine_gradients(). The last of these calls
    combines the sums of all ranks. This works eagerly, inside tf.function and in graphs of
    TensorFlow 1.

    Args:
        combiner: Combines the sums.
        passes: The number of passes, the same on all ranks.
        is_average: Whether the sums are divided by the number of passes.
    """

    def __init__(self, combiner: GradientCombiner, passes: int, is_average: bool) -> None:
        self._combiner, self._passes, self._is_average = combiner, passes, is_average
        self._variables: list[Any] = []  # the variables that have a gradient
        self._sums: list[Any] = []  # a tf.Variable with the sum of each of these gradients
        self._pass_count: Any = None
        self._was_last_pass: Any = None

    def combine_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined sums after the last pass, and zeros before that."""
        indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense_gradients = [tf.convert_to_tensor(gradients[i]) for i in indices]
        chosen_variables = [variables[i] for i in indices]
        self._make_sums(dense_gradients, chosen_variables)
        updates = [s.assign_add(g) for s, g in zip(self._sums, dense_gradients, strict=True)]
        with tf.control_dependencies([*updates, self._pass_count.assign_add(1)]):
            self._was_last_pass = tf.equal(self._pass_count.read_value() % self._passes, 0)
        results = tf.cond(
            self._was_last_pass,
            lambda: self._combine_and_reset_sums(chosen_variables),
            lambda: [tf.zeros_like(gradient) for gradient in dense_gradients],
        )
        all_results: list[Any] = [None] * len(gradients)
        for i, result in zip(indices, results, strict=True):
            all_results[i] = result
        return all_results

    def run_after_pass(self, apply_last: Callable[[], Any], apply_other: Callable[[], Any]) -> Any:
        """Run `apply_last` if the most recent call of combine_gradients() was the last of the
        passes. Otherwise, run `apply_other`. Each of the two returns an operation or None. Return
        an operation."""

        def run_and_return_true(apply: Callable[[], Any]) -> Any:
            operation = apply()
            with tf.control_dependencies([] if operation is None else [operation]):
                return tf.constant(True)

        return tf.cond(
            self._was_last_pass,
            lambda: run_and_return_true(apply_last),
            lambda: run_and_return_true(apply_other),
        )

    def _make_sums(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._pass_count is None:
            self._pass_count = tf.Variable(0, trainable=False, dtype=tf.int64)
            zeros = [tf.zeros(gradient.shape, gradient.dtype) for gradient in gradients]
            self._sums = [tf.Variable(zero, trainable=False) for zero in zeros]
            self._variables = list(variables)
        if list(map(id, self._variables)) != list(map(id, variables)):
            first_text, current_text = (
                ", ".join(f"{variable.name} {list(variable.shape)}" for variable in values)
                for values in (self._variables, variables)
            )
            raise CallError(
                "with backward_passes_per_step above 1, all passes must have gradients of the same "
                f"variables; the first pass had {first_text}; this one has {current_text}"
            )

    def _combine_and_reset_sums(self, variables: Sequence[Any]) -> list[Any]:
        factor = 1 / self._passes if self._is_average else 1.0
        totals = [total.read_value() * tf.cast(factor, total.dtype) for total in self._sums]
        results = self._combiner.combine_gradients(totals, variables)
        # Reset the sums only after the calls. If a call fails, the sums keep their values.
        with tf.control_dependencies([*totals, *results]):
            resets = [total.assign(tf.zeros_like(total)) for total in self._sums]
        with tf.control_dependencies(resets):
            return [tf.identity(result) for result in results]
