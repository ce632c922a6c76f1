"""Calls inside tf.function and in graphs of TensorFlow 1, compared with NumPy.

With ONE_THREAD=1 in the environment, TensorFlow has one thread and runs one operation at a time.
Odd ranks then optimize their graphs with other options than even ranks.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from random_steps import Step
from reference import Array, input_of
from suite import Suite
from tensorflow_frontend import TensorFlowFrontend

import farandole.tensorflow as hvd
from farandole import lifecycle
from farandole.tensorflow.ops import query

if os.environ.get("ONE_THREAD") == "1":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
if int(os.environ.get("FARANDOLE_RANK", "0")) % 2:
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": False, "function_optimization": True, "remapping": False}
    )
else:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

assert os.environ.get("WANTED_TENSORFLOW", tf.__version__) == tf.__version__

RUNS = 3
CONTEXTS = ("none", "function", "loop", "branch", "eager")


class TensorFlowStep(Step):
    def call(self, x: Any) -> Any:
        return getattr(hvd, self.operation)(x, **self.options(hvd))

    def run(self, x: Any) -> Any:
        if self.context == "function":
            return tf.function(self.call)(x)
        if self.context == "loop":

            def body(i: Any, _: Any) -> Any:
                return i + 1, self.call(x)

            result = self.call(x)
            invariants = [tf.TensorShape([]), tf.TensorShape([None, *result.shape[1:]])]
            return tf.while_loop(lambda i, _: i < 3, body, [0, result], invariants)[1]
        if self.context == "branch":
            return tf.cond(tf.size(x) >= 0, lambda: self.call(x), lambda: self.call(x))
        return self.call(x)


class TensorFlowCompiledChecks(Suite):
    def __init__(self) -> None:
        super().__init__(TensorFlowFrontend())

    def random_steps(self, seed: int) -> list[TensorFlowStep]:
        """Draw random steps, the same on all ranks. Return those steps whose group contains this
        rank."""
        generator = random.Random(seed)
        groups = [hvd.global_process_set, *self.groups]
        steps = [TensorFlowStep.draw(generator, groups, CONTEXTS) for _ in range(12)]
        return [step for step in steps if step.group.included()]

    def check_random_programs(self) -> None:
        """Each program is one tf.function, which runs several times. Each rank sleeps at its own
        times between the runs."""
        for seed in range(6):
            steps = self.random_steps(seed)
            program = tf.function(functools.partial(run_steps, steps))
            for run_number in range(RUNS):
                time.sleep(random.random() * 0.005)  # another time on each rank
                inputs = [
                    self.tensor(step.shape, step.dtype, seed * 100 + run_number) for step in steps
                ]
                for step, result in zip(steps, program(inputs), strict=True):
                    arrays = self.inputs_of_group(
                        step.group, step.shape, step.dtype, seed * 100 + run_number
                    )
                    expected = step.expected(arrays, step.group.rank())
                    self.expect(
                        result, expected, step.dtype, is_exact=False, absolute_tolerance=1e-6
                    )

    def check_independent_operations_of_a_graph(self) -> None:
        """TensorFlow 1 may run independent operations of a graph in any order, so each rank has
        another order. Even with fewer threads than operations, the calls of the ranks must
        match."""
        count = 24
        graph = tf.Graph()
        with graph.as_default():
            inputs = [
                tf.constant(input_of(self.rank, (40, 3), "float32", i), tf.float32)
                for i in range(count)
            ]
            results = [hvd.allreduce(x, op=hvd.Sum) for x in inputs]
        run_order = list(range(count))
        with tf.compat.v1.Session(graph=graph) as session:
            for run_number in range(RUNS):
                random.Random(self.rank * 100 + run_number).shuffle(run_order)
                actual = session.run([results[i] for i in run_order])
                for i, result in zip(run_order, actual, strict=True):
                    expected = np.sum(self.inputs_of_all((40, 3), seed=i), 0)
                    np.testing.assert_allclose(result, expected, rtol=1e-5)

    def check_operations_of_one_name_in_a_graph(self) -> None:
        """An allreduce and a broadcast have the same name. Which of them begins first, and whether
        it ends before the other one begins, differs between ranks and runs."""
        graph = tf.Graph()
        with graph.as_default():
            x = tf.constant(input_of(self.rank, (40, 3), "float32", 0), tf.float32)
            total = hvd.allreduce(x, op=hvd.Sum, name="m")
            broadcast_value = hvd.broadcast(x, 0, name="m")
            names = [
                op.get_attr("names") for op in graph.get_operations() if "Farandole" in op.type
            ]
        assert names == [[b"m"], [b"m (broadcast)"]], names
        inputs = self.inputs_of_all((40, 3), seed=0)
        with tf.compat.v1.Session(graph=graph) as session:
            for run_number in range(RUNS):
                outputs = (
                    [total, broadcast_value]
                    if (self.rank + run_number) % 2
                    else [broadcast_value, total]
                )
                for fetched, result in zip(outputs, session.run(outputs), strict=True):
                    expected = np.sum(inputs, 0) if fetched is total else inputs[0]
                    np.testing.assert_allclose(result, expected, rtol=1e-5)

    def check_several_gradients_of_one_call_of_a_graph(self) -> None:
        """A graph computes several gradients of one grouped call. Each rank runs them in another
        order."""
        count = 8
        with tf.Graph().as_default():
            x = tf.constant(np.ones(30), tf.float32)
            sums = hvd.grouped_allreduce([x, x * 2], op=hvd.Sum, name="both")
            losses = [tf.reduce_sum(sums[0] + sums[1]) * (i + 1.0) for i in range(count)]
            gradients = [tf.gradients(loss, x)[0] for loss in losses]
            run_order = list(range(count))
            with tf.compat.v1.Session() as session:
                for run_number in range(RUNS):
                    random.Random(self.rank * 100 + run_number).shuffle(run_order)
                    for i, gradient in zip(
                        run_order, session.run([gradients[i] for i in run_order]), strict=True
                    ):
                        assert (gradient == 3 * (i + 1.0) * self.size).all(), (i, gradient)

    def check_threads_with_names(self) -> None:
        mistakes: list[str] = []

        def work(number: int) -> None:
            @tf.function
            def step(x: Any) -> Any:
                return hvd.allreduce(x, op=hvd.Sum, name=f"thread.{number}")

            for run_number in range(20):
                actual = step(tf.fill([8], float(self.rank + number + run_number)))
                expected = sum(rank + number + run_number for rank in range(self.size))
                if not np.array_equal(actual.numpy(), np.full(8, expected, np.float32)):
                    mistakes.append(f"{number} {run_number}: {actual} {expected}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not mistakes, mistakes

    def check_shapes_that_are_not_known(self) -> None:
        """The ranks may call a function with different numbers of rows."""

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
        def gathered(x: Any) -> Any:
            result = hvd.allgather(x)
            assert result.shape.as_list() == [None, 2]
            return result

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
        def doubled(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum)

        actual = gathered(tf.fill([self.rank + 1, 2], float(self.rank)))
        expected = [[float(rank)] * 2 for rank in range(self.size) for _ in range(rank + 1)]
        assert actual.numpy().tolist() == expected
        for shape in ([], [3], [2, 2]):
            assert (doubled(tf.ones(shape)).numpy() == self.size).all()

    def check_splits_inside_a_function(self) -> None:
        @tf.function
        def exchange(x: Any, splits: Any) -> Any:
            return hvd.alltoall(x, splits)

        splits = [rank + 1 for rank in range(self.size)]
        x = tf.range(sum(splits)) + 100 * self.rank
        rows, counts = exchange(x, tf.constant(splits))
        begin = sum(splits[: self.rank])
        expected = [
            100 * rank + begin + row for rank in range(self.size) for row in range(self.rank + 1)
        ]
        assert rows.numpy().tolist() == expected
        assert counts.numpy().tolist() == [self.rank + 1] * self.size and counts.dtype == tf.int32

    def check_numbers_of_this_rank(self) -> None:
        @tf.function
        def numbers() -> Any:
            own_numbers = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
            return [*own_numbers, hvd.process_set_included_op()]

        expected = [self.rank, self.size, hvd.local_rank(), hvd.local_size(), 1]
        assert [int(number) for number in numbers()] == expected
        assert [int(hvd.rank_op()), int(hvd.size_op(0))] == [self.rank, self.size]
        for group in self.groups:
            number = group.process_set_id
            assert int(hvd.process_set_included_op(number)) == int(group.included())
            assert int(hvd.size_op(number)) == len(group.ranks)
        self.expect_error("no process set with the number 99", hvd.size_op, 99)
        try:
            query("color")
        except tf.errors.InvalidArgumentError as error:
            assert "farandole has no number `color`" in str(error), str(error)
        else:
            raise AssertionError("no error")

    def check_errors_in_functions(self) -> None:
        """If the calls inside functions do not match, all ranks get the same error text, and later
        calls work."""
        if self.size == 1:
            return
        x = tf.ones([3 + self.rank])
        step = tf.function(lambda x: hvd.allreduce(x, name="grown"))
        self.expect_rejected("CallError: allreduce `grown` was submitted differently", step, x)
        text = self.expect_error("the shape differs", hvd.allreduce, x, name="grown")
        assert "[Op:" not in text and "{{" not in text, text
        try:
            hvd.allreduce(x, name="grown")
        except tf.errors.FailedPreconditionError as error:
            copy = pickle.loads(pickle.dumps(error))
            assert type(copy) is type(error) and str(copy) == str(error), copy
        else:
            raise AssertionError("no error")
        self.expect_rejected("the shape differs", hvd.allreduce, x)
        self.expect_sum_works()

    def check_functions_of_an_earlier_job(self) -> None:
        """A function that was traced in an earlier job still works if it makes calls of all ranks,
        or derivatives of allreduces. If the function makes calls of a process set, the new job must
        pass the same sets to init(), so that the set gets the same number again."""
        world = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
        derivative = tf.function(lambda x: tf.gradients(hvd.allreduce(x, op=hvd.Sum), x)[0])
        gather_gradient = tf.function(lambda x: tf.gradients(hvd.allgather(x), x)[0])
        gather_gradient(tf.ones([1]))
        groups = self.my_groups()[1:]
        calls = [
            tf.function(functools.partial(hvd.allreduce, op=hvd.Sum, process_set=group))
            for group in groups
        ]
        for _ in range(2):
            assert world(tf.ones([])) == derivative(tf.ones([])) == self.size
            for group, call in zip(groups, calls, strict=True):
                assert call(tf.ones([])) == len(group.ranks)
            self.api.shutdown()
            self.init()
        self.api.shutdown()
        hvd.init()
        assert world(tf.ones([])) == derivative(tf.ones([])) == self.size
        self.expect_rejected("traced before the last init()", gather_gradient, tf.ones([1]))
        self.api.shutdown()
        self.init()
        for call in calls:
            self.expect_rejected("traced before the last init()", call, tf.ones([]))

    def check_functions_with_a_set_that_was_added_to_an_earlier_job(self) -> None:
        if self.size == 1:
            return
        first_set = hvd.add_process_set([0])
        call = tf.function(lambda x: hvd.allreduce(x, process_set=first_set))
        if self.rank == 0:
            assert call(tf.ones([])) == 1
        self.api.shutdown()
        self.init()
        # This set gets the number that `first_set` had.
        assert hvd.add_process_set([1]).process_set_id == len(self.groups) + 1
        if self.rank == 0:
            self.expect_rejected("traced before the last init()", call, tf.ones([]))

    def expect_rejected(self, text: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except tf.errors.FailedPreconditionError as error:
            assert text in str(error), str(error)
        else:
            raise AssertionError("no error")

    def check_gradients_outside_of_the_group(self) -> None:
        """A rank outside of the group gets its own gradients, not averages. In an elastic job, a
        function checks in each run whether this rank is a member."""
        rank, size = self.rank, self.size
        table, x, unused_variable = (tf.Variable(tf.ones([size, 2])) for _ in range(3))
        for group, as_dense in itertools.product(self.groups[:1], (False, True)):

            def gradients(*chosen: Any, group: Any = group, as_dense: bool = as_dense) -> Any:
                tape = hvd.DistributedGradientTape(
                    tf.GradientTape(), sparse_as_dense=as_dense, process_set=group
                )
                with tape:
                    parts = [tf.gather(table, [rank, 0]), (1.0 + rank) * x]
                    loss = tf.add_n([tf.reduce_sum(part) for part in parts])
                return tape.gradient(loss, chosen)

            members = group.ranks if group.included() else [rank]
            rows = np.zeros((size, 2))
            for member in members:
                rows[member] += 1 / len(members)
            rows[0] += 1
            for make in (lambda call: call, tf.function):
                with mock.patch.object(lifecycle, "is_elastic", lambda value=not as_dense: value):
                    table_gradient, x_gradient, unused_gradient = make(gradients)(
                        table, x, unused_variable
                    )
                    assert not as_dense or make(gradients)(unused_variable) == (None,)
                assert (
                    unused_gradient is None
                    and isinstance(table_gradient, tf.IndexedSlices) != as_dense
                )
                np.testing.assert_allclose(tf.convert_to_tensor(table_gradient).numpy(), rows)
                np.testing.assert_allclose(x_gradient.numpy(), 1.0 + np.mean(members))

    def check_optimizers_outside_of_the_group(self) -> None:
        for group, is_elastic in itertools.product(self.groups[:1], (False, True)):
            members = group.ranks if group.included() else [self.rank]
            for passes in (1,) if is_elastic else (1, 2):
                with (
                    mock.patch.object(lifecycle, "is_elastic", lambda value=is_elastic: value),
                    tf.Graph().as_default(),
                ):
                    x = tf.Variable(10.0)
                    optimizer = hvd.DistributedOptimizer(
                        tf.compat.v1.train.GradientDescentOptimizer(1.0),
                        backward_passes_per_step=passes,
                        process_set=group,
                    )
                    step = optimizer.minimize(x * float(self.rank))
                    with tf.compat.v1.Session() as session:
                        session.run(tf.compat.v1.global_variables_initializer())
                        for _ in range(2):
                            session.run(step)
                        trained_value = session.run(x)
                np.testing.assert_allclose(trained_value, 10.0 - 2 * np.mean(members), rtol=1e-6)

    def check_tapes_in_functions_of_an_earlier_job(self) -> None:
        """A function knows a group by its number. In a later job, this number may belong to other
        ranks. Then the function raises an error, even on a rank that was outside of the earlier
        group."""
        if self.size != 3:
            return
        x = tf.Variable(1.0)
        pair = self.groups[0]

        @tf.function
        def gradient() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(), process_set=pair) as tape:
                loss = x * float(self.rank)
            return tape.gradient(loss, x)

        def expect_works() -> None:
            assert float(gradient()) == (0.5 if self.rank < 2 else 2.0)

        expect_works()
        self.api.shutdown()
        self.init()
        expect_works()
        self.api.shutdown()
        hvd.init(process_sets=[hvd.ProcessSet(ranks) for ranks in ([0, 2], [1, 2], [0, 1])])
        self.expect_rejected("traced before the last init()", gradient)
        self.api.shutdown()
        self.init()

    def check_gradients_of_all_operations(self) -> None:
        for make in (lambda call: call, tf.function, with_unknown_shapes):
            self.expect_gradients(make)

    def expect_gradients(self, wrap: Callable[[Any], Any]) -> None:
        rows, rank, size = 2 * self.size, self.rank, self.size
        x = tf.constant(np.arange(rows * 2).reshape(rows, 2) + 10.0 * rank)

        def gradient_of(call: Callable[[Any], Any]) -> Array:
            """Return the gradient of Σ (1 + rank + position) · result."""

            def weighted(x: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    result = call(x)
                    row_numbers = tf.cast(
                        tf.reshape(tf.range(tf.shape(result)[0]), [-1, 1]), x.dtype
                    )
                    loss = tf.reduce_sum((1.0 + rank + row_numbers) * result)
                return tape.gradient(loss, x)

            return wrap(weighted)(x).numpy()

        weights = np.arange(rows).reshape(-1, 1) + np.ones((rows, 2))
        total = size * weights + sum(range(size))
        mean = total / size
        np.testing.assert_allclose(gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum)), total)
        np.testing.assert_allclose(gradient_of(hvd.allreduce), mean)
        root = size - 1
        np.testing.assert_allclose(
            gradient_of(lambda x: hvd.broadcast(x, root)), mean if rank == root else 0 * mean
        )
        positions = np.arange(rows).reshape(-1, 1) + rank * rows + np.ones((rows, 2))
        gathered = positions + sum(range(size)) / size
        np.testing.assert_allclose(gradient_of(hvd.allgather), gathered)
        exchanged = np.concatenate([np.arange(2) + 1 + 2 * rank + r for r in range(size)])
        np.testing.assert_allclose(gradient_of(hvd.alltoall)[:, 0], exchanged)
        parts = np.concatenate([np.arange(2) + 1 + r for r in range(size)])
        summed_gradient = gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum))
        np.testing.assert_allclose(summed_gradient[:, 0], parts * size)
        np.testing.assert_allclose(gradient_of(hvd.reducescatter)[:, 0], parts)

    def check_rows_that_were_not_sent_have_no_gradient(self) -> None:
        x = tf.ones([self.size + 1, 1])
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows, _ = hvd.alltoall(x, [1] * self.size)
            loss = tf.reduce_sum(rows) * 3
        assert tape.gradient(loss, x).numpy()[:, 0].tolist() == [3.0] * self.size + [0.0]

    def check_second_derivatives(self) -> None:
        x = tf.constant(float(self.rank + 2))
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = hvd.allreduce(x**3, op=hvd.Sum)
            first_derivative = inner.gradient(y, x)
        assert first_derivative.numpy() == self.size * 3 * (self.rank + 2) ** 2
        assert outer.gradient(first_derivative, x).numpy() == self.size * 6 * (self.rank + 2)

    def check_reductions_without_a_gradient(self) -> None:
        x = tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Min))
        self.expect_error("allreduce with op Min has no gradient", tape.gradient, loss, x)


def run_steps(steps: Sequence[Step], inputs: Sequence[Any]) -> list[Any]:
    return [step.run(x) for step, x in zip(steps, inputs, strict=True)]


def with_unknown_shapes(call: Callable[[Any], Any]) -> Any:
    return tf.function(call, input_signature=[tf.TensorSpec([None, None], tf.float64)])
