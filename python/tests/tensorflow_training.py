"""Training with TensorFlow. The replicas stay equal, and they learn what one process learns from
all data."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from suite import Suite
from tensorflow_frontend import TensorFlowFrontend

import farandole.tensorflow as hvd
from farandole.elastic import HostsUpdatedInterrupt

v1 = tf.compat.v1

STEPS = 8
ROWS = 12  # of all ranks together; a multiple of each tested number of ranks
VOCABULARY_SIZE = 20


class Model(tf.Module):
    """An embedding, whose gradient is sparse, and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(7)
        self.table = tf.Variable(random.standard_normal((VOCABULARY_SIZE, 5)), name="table")
        self.hidden = tf.Variable(random.standard_normal((5, 4)), name="hidden")
        self.bias = tf.Variable(np.zeros(4), name="bias")
        self.out = tf.Variable(random.standard_normal((4, 1)), name="out")
        self.unused = tf.Variable(np.ones(2), name="unused")  # never has a gradient

    def loss(self, words: Any, y: Any) -> Any:
        x = tf.nn.embedding_lookup(self.table, words)
        return tf.reduce_mean((tf.tanh(x @ self.hidden + self.bias) @ self.out - y) ** 2)


class TensorFlowTrainingChecks(Suite):
    def __init__(self) -> None:
        super().__init__(TensorFlowFrontend())
        random = np.random.default_rng(3)
        self.words = random.integers(0, VOCABULARY_SIZE, (STEPS, ROWS))
        self.y = random.standard_normal((STEPS, ROWS, 1))

    def own_rows(self, data: Any) -> Any:
        return data[:, self.rank :: self.size]

    def train(
        self,
        wrap: Callable[[Any], Any],
        data: Sequence[Any],
        wrap_step: Callable[[Any], Any] = lambda step: step,
        rate: float = 0.2,
    ) -> list[Any]:
        model = Model()
        variables = model.trainable_variables

        def step(words: Any, y: Any) -> Any:
            with wrap(tf.GradientTape()) as tape:
                loss = model.loss(words, y)
            for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    variable.scatter_sub(tf.IndexedSlices(gradient.values * rate, gradient.indices))
                elif gradient is not None:
                    variable.assign_sub(rate * gradient)
            return loss

        run = wrap_step(step)
        for words, y in zip(*data, strict=True):
            run(tf.constant(words), tf.constant(y))
        return [variable.numpy() for variable in variables]

    def expect_close(self, actual: Sequence[Any], expected: Sequence[Any]) -> None:
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)

    def check_tape_as_one_process_with_all_data(self) -> None:
        own_data = (self.own_rows(self.words), self.own_rows(self.y))
        single_process = self.train(lambda tape: tape, (self.words, self.y))
        for make in (lambda step: step, tf.function):
            for options in ({}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}):
                trained_variables = self.train(
                    lambda tape, o=options: hvd.DistributedGradientTape(tape, **o), own_data, make
                )
                hvd.check_parameters(trained_variables)
                self.expect_close(trained_variables, single_process)
        if self.size > 1:  # without the distributed tape, the replicas differ
            unsynchronized_variables = self.train(lambda tape: tape, own_data)
            self.expect_error(
                "are not the same on all ranks", hvd.check_parameters, unsynchronized_variables
            )

    def check_tape_after_the_recording(self) -> None:
        x = tf.Variable([1.0, 2.0])
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(x) * self.rank
        distributed_tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        assert isinstance(distributed_tape, tf.GradientTape)
        total = float(sum(range(self.size)))
        assert distributed_tape.gradient(loss, {"x": x})["x"].numpy().tolist() == [total] * 2
        assert distributed_tape.gradient(loss, x).numpy().tolist() == [total] * 2
        assert tape.gradient(loss, x).numpy().tolist() == [self.rank] * 2
        assert distributed_tape.watched_variables() == (x,)

    def check_gradients_of_different_variables(self) -> None:
        """Ranks that have gradients of different variables get errors, not averages of them."""
        head_variables = [tf.Variable([1.0]), tf.Variable([1.0])]

        @tf.function
        def step(head: int) -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(head_variables[head])
            return tape.gradient(loss, head_variables)

        assert step(0)[0].numpy().tolist() == [1.0]
        if self.size > 1:
            try:
                step(self.rank % 2)
            except tf.errors.InvalidArgumentError as error:
                assert "gradients of different variables" in str(error), str(error)
            else:
                raise AssertionError("no error")
        assert step(1)[1].numpy().tolist() == [1.0]

    def check_local_sources(self) -> None:
        for scale in (True, False):
            local_variable, shared_variable = tf.Variable(1.0), tf.Variable(1.0)
            tape = hvd.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=scale)
            tape.register_local_source(local_variable)
            with tape:
                loss = (local_variable + shared_variable) * self.rank
            own_rows, mean = tape.gradient(loss, [local_variable, shared_variable])
            assert own_rows.numpy() == np.float32(self.rank / self.size if scale else self.rank)
            np.testing.assert_allclose(mean.numpy(), sum(range(self.size)) / self.size)

    def check_an_overflow_of_a_local_source(self) -> None:
        """If a local gradient of one rank overflows, all ranks get the overflow. So loss scaling
        skips the same steps on all ranks."""
        for overflows, make, op in itertools.product(
            (False, True), (lambda call: call, tf.function), (hvd.Average, hvd.Min, hvd.Product)
        ):
            table, local_variable, shared_variable = (
                tf.Variable([[1.0], [2.0]]),
                tf.Variable(1.0),
                tf.Variable(1.0),
            )

            def gradients(
                has_overflow: bool = overflows,
                op: hvd.ReduceOp = op,
                sources: Sequence[Any] = (table, local_variable, shared_variable),
            ) -> list[Any]:
                tape = hvd.DistributedGradientTape(tf.GradientTape(), op=op)
                for local_source in sources[:2]:
                    tape.register_local_source(local_source)
                factor = float("inf") if has_overflow and self.rank == self.size - 1 else 1.0
                with tape:
                    # This gradient has different rows on each rank, or no rows.
                    chosen_rows = (
                        [1] if factor > 1 or not has_overflow else tf.constant([], tf.int32)
                    )
                    loss = (
                        tf.reduce_sum(tf.gather(sources[0], chosen_rows)) * factor
                        + sources[1]
                        + 3 * sources[2]
                    )
                return tape.gradient(loss, sources)

            rows_gradient, local_gradient, shared_gradient = make(gradients)()
            assert isinstance(rows_gradient, tf.IndexedSlices)
            np.testing.assert_allclose(local_gradient.numpy(), 1 / self.size)
            combined = 3.0 ** (self.size if op is hvd.Product else 1)
            np.testing.assert_allclose(shared_gradient.numpy(), np.inf if overflows else combined)

    def check_optimizers_of_tensorflow_1_in_a_graph(self) -> None:
        def train(wrap: Callable[[Any], Any], words: Any, y: Any, hook: bool) -> list[Any]:
            with tf.Graph().as_default():
                model = Model()
                rows, targets = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float64)
                loss = model.loss(rows, targets)
                optimizer = wrap(v1.train.MomentumOptimizer(0.1, 0.9))
                train_op = optimizer.minimize(
                    loss, v1.train.get_or_create_global_step(), var_list=model.trainable_variables
                )
                hooks = [hvd.BroadcastGlobalVariablesHook(0)] if hook else []
                with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                    for step in range(STEPS):
                        session.run(train_op, {rows: words[step], targets: y[step]})
                    return list(session.run(list(model.trainable_variables)))

        single_process = train(lambda optimizer: optimizer, self.words, self.y, hook=False)
        distributed = train(
            hvd.DistributedOptimizer, self.own_rows(self.words), self.own_rows(self.y), True
        )
        hvd.check_parameters(distributed)
        self.expect_close(distributed, single_process)

    def check_two_optimizers_in_one_graph(self) -> None:
        """One run of the graph contains the steps of both optimizers, in an order that differs
        between the ranks."""
        with tf.Graph().as_default():
            variables = [tf.Variable(tf.zeros([500])) for _ in range(6)]
            steps = [
                hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(
                    tf.reduce_sum(variable) * (number + 1.0), var_list=[variable]
                )
                for number, variable in enumerate(variables)
            ]
            ordered_steps = steps if self.rank % 2 else steps[::-1]
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for round_number in range(1, 6):
                    session.run(ordered_steps)
                    for number, value in enumerate(session.run(variables)):
                        assert (value == -round_number * (number + 1.0)).all(), (
                            round_number,
                            number,
                            value,
                        )

    def check_variables_of_a_graph(self) -> None:
        with tf.Graph().as_default():
            rank_variable = tf.Variable([1.0 + self.rank], name="one")
            integer_variable = tf.Variable(self.rank, name="two")
            initialize, share = v1.global_variables_initializer(), hvd.broadcast_global_variables(0)
            with v1.Session() as session:
                session.run(initialize)
                session.run(share)
                assert session.run([rank_variable, integer_variable])[0].tolist() == [1.0]
                assert session.run(integer_variable) == 0

    def check_several_passes(self) -> None:
        """An optimizer of TensorFlow 1 adds up the gradients of several passes. The check runs
        these passes eagerly, in a function, and in a graph."""
        for is_averaged in (False, True):
            expected = 10.0 - sum(range(self.size)) / self.size * (3.0 if is_averaged else 6.0)
            for run in (self.run_passes_eagerly, self.run_passes_in_a_graph):
                assert abs(run(is_averaged) - expected) < 1e-6, (run, is_averaged)

    def distributed(self, is_averaged: bool) -> Any:
        return hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=is_averaged,
        )

    def run_passes_eagerly(self, is_averaged: bool) -> float:
        final_values = []
        for make in (lambda step: step, tf.function):
            x, global_step = tf.Variable(10.0), tf.Variable(0, dtype=tf.int64)
            optimizer = self.distributed(is_averaged)

            # size waiver: the variables of this turn of the loop
            def one_pass(
                factor: Any, x: Any = x, step: Any = global_step, optimizer: Any = optimizer
            ) -> None:
                pairs = optimizer.compute_gradients(lambda: x * factor, [x])
                optimizer.apply_gradients(pairs, global_step=step)

            run = make(one_pass)
            for factor in (2, 4):
                assert x.numpy() == 10.0
                run(tf.constant(float(factor * self.rank)))
            assert global_step.numpy() == 2  # each pass counts as a step
            final_values.append(float(x.numpy()))
        assert final_values[0] == final_values[1]
        return final_values[0]

    def run_passes_in_a_graph(self, is_averaged: bool) -> float:
        with tf.Graph().as_default():
            x = tf.Variable(10.0)
            factor = v1.placeholder(tf.float32)
            global_step = v1.train.get_or_create_global_step()
            train = self.distributed(is_averaged).minimize(x * factor, global_step)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for number in (2, 4):
                    assert session.run(x) == 10.0
                    session.run(train, {factor: number * self.rank})
                assert session.run(global_step) == 2
                return float(session.run(x))

    def check_local_variables_over_several_passes(self) -> None:
        for is_averaged in (False, True):
            shared_variable, local_variable = tf.Variable(0.0), tf.Variable(0.0)
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=is_averaged,
                scale_local_gradients=False,
            )
            optimizer.register_local_var(local_variable)
            for _ in range(2):
                pairs = optimizer.compute_gradients(
                    lambda a=shared_variable, b=local_variable: a + b,
                    [shared_variable, local_variable],
                )
                optimizer.apply_gradients(pairs)
            assert (
                shared_variable.numpy() == local_variable.numpy() == (-1.0 if is_averaged else -2.0)
            )

    def check_local_gradients_in_a_later_job(self) -> None:
        """A function averages local gradients. If the size of the job changes after the function
        was traced, the function must divide by the new size."""
        local_variable = tf.Variable(1.0)

        @tf.function
        def gradient() -> Any:
            tape = hvd.PartialDistributedGradientTape(tf.GradientTape())
            tape.register_local_source(local_variable)
            with tape:
                loss = local_variable * 6.0
            return tape.gradient(loss, local_variable)

        with mock.patch.object(type(hvd.global_process_set), "size", lambda _: 100):
            gradient.get_concrete_function()
        assert float(gradient()) == 6.0 / self.size

    def check_variables_of_the_root(self) -> None:
        root = self.size - 1
        dtypes = (tf.float32, tf.bfloat16, tf.int64, tf.bool, tf.uint32, tf.uint64)

        def values(rank: int) -> list[Any]:
            return [tf.cast(tf.constant([rank + 1, 0, 7]), dtype) for dtype in dtypes]

        variables = [tf.Variable(value) for value in values(self.rank)]
        if self.size > 1:
            self.expect_error("are not the same on all ranks", hvd.check_parameters, variables)
        assert hvd.broadcast_variables(variables, root_rank=root) is None
        for variable, expected in zip(variables, values(root), strict=True):
            assert variable.dtype == expected.dtype
            assert (variable.numpy() == expected.numpy()).all()
        hvd.check_parameters({str(i): variable for i, variable in enumerate(variables)})
        variables[0].assign([self.rank, 1, 2])
        share = tf.function(lambda: hvd.broadcast_variables(variables, root_rank=root))
        share()
        assert variables[0].numpy().tolist() == [root, 1, 2]
        rank_variable = tf.Variable(float(self.rank))
        assert [float(value) for value in hvd.broadcast_([rank_variable], 0)] == [0.0]
        hvd.broadcast_variables(tf.Variable(self.rank), 0)  # a single variable instead of a list

    def check_sparse_reductions(self) -> None:
        own_slices = tf.IndexedSlices(
            tf.fill([self.rank + 1, 2], 1.0), tf.range(self.rank + 1), tf.constant([9, 2])
        )
        dense = np.zeros((9, 2))
        for rank in range(self.size):
            dense[: rank + 1] += 1
        for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / self.size)):
            result = hvd.allreduce(own_slices, op=op, compression=hvd.Compression.fp16)
            assert isinstance(result, tf.IndexedSlices) and result.dtype == tf.float32
            np.testing.assert_allclose(tf.convert_to_tensor(result), dense * factor, rtol=1e-6)
        self.expect_error("got Min", hvd.allreduce, own_slices, op=hvd.Min)
        reduce = tf.function(hvd.allreduce)
        np.testing.assert_allclose(
            tf.convert_to_tensor(reduce(own_slices)), dense / self.size, rtol=1e-6
        )
        if self.size > 1:
            different_slices = tf.IndexedSlices(
                own_slices.values, own_slices.indices, tf.constant([9 + self.rank, 2])
            )
            try:
                reduce(different_slices)
            except tf.errors.InvalidArgumentError as error:
                assert "different shapes on the ranks" in str(error), str(error)
            else:
                raise AssertionError("no error")
        integer_slices = tf.IndexedSlices(tf.constant([[self.rank + 1]]), tf.constant([0]))
        for op in (hvd.Average, hvd.Sum):
            factor = 0.5 if op is hvd.Sum else 1.0
            self.expect_error(
                "needs the op Sum and factors of 1",
                hvd.allreduce,
                integer_slices,
                op=op,
                prescale_factor=factor,
            )
        result = hvd.allreduce(integer_slices, op=hvd.Sum)
        assert result.values.numpy()[:, 0].tolist() == [rank + 1 for rank in range(self.size)]
        assert result.dtype == tf.int32
        slices_without_shape = tf.IndexedSlices(own_slices.values, own_slices.indices)
        assert hvd.allreduce(slices_without_shape).dense_shape is None

    def check_sparse_reductions_in_a_batch(self) -> None:
        """If a list contains dense and sparse tensors, the results have the same order and
        kinds."""

        def slices(shape: Any) -> Any:
            dense_shape = None if shape is None else tf.constant(shape)
            values, indices = tf.constant([[self.rank + 1.0]]), tf.constant([self.rank])
            return tf.IndexedSlices(values, indices, dense_shape)

        def reduce() -> list[Any]:
            mixed_tensors = [
                slices(None),
                tf.constant([self.rank + 1.0]),
                slices([9, 1]),
                tf.ones([2]),
            ]
            options = {"op": hvd.Sum, "prescale_factor": 2.0, "name": "mixed"}
            assert not hvd.grouped_allreduce([], **options)
            [single_result] = hvd.grouped_allreduce(mixed_tensors[:1], op=hvd.Sum)
            return [*hvd.grouped_allreduce(mixed_tensors, **options), single_result]

        ranks = list(range(self.size))
        rows = [[2.0 * (rank + 1)] for rank in ranks]
        for run in (reduce, tf.function(reduce)):
            results = run()
            for i, factor in ((0, 1), (2, 1), (4, 0.5)):
                expected_part = results[i]
                assert isinstance(expected_part, tf.IndexedSlices), expected_part
                assert expected_part.indices.numpy().tolist() == ranks
                assert (expected_part.values.numpy() == np.array(rows) * factor).all()
            assert results[0].dense_shape is None
            assert results[2].dense_shape.numpy().tolist() == [9, 1]
            assert results[1].numpy().tolist() == [sum(map(sum, rows))]
            assert results[3].numpy().tolist() == [2.0 * self.size] * 2
        self.expect_error("got Min", hvd.grouped_allreduce, [slices(None)], op=hvd.Min)
        assert hvd.grouped_allreduce([]) == []

    def check_elastic_state_with_other_variables(self) -> None:
        if self.size == 1:
            return
        count = 2 if self.rank == 0 else 1
        for variables in (
            [tf.Variable(1.0) for _ in range(count)],
            [tf.Variable(tf.ones([count]))],
            [tf.Variable(1, dtype=tf.int32 if self.rank == 0 else tf.int64)],
        ):
            state = hvd.elastic.TensorFlowState(variables)
            self.expect_error("cannot begin with the same variables", state.sync)
        assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == self.size

    def check_elastic_state_of_a_graph(self) -> None:
        with tf.Graph().as_default():
            tf.Variable([1.0 + self.rank]), v1.get_variable("old", [], use_resource=False)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                state = hvd.elastic.TensorFlowState(session=session, epoch=self.rank)
                state.sync()
                assert state.epoch == 0 and session.run(state.variables)[0].tolist() == [1.0]

    def check_smaller_dtypes(self) -> None:
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            total = hvd.allreduce(
                tf.constant([1.0, self.rank]), op=hvd.Sum, compression=compression
            )
            assert total.dtype == tf.float32
            assert total.numpy().tolist() == [self.size, sum(range(self.size))]

    def check_join(self) -> None:
        for _ in range(self.rank):
            hvd.allreduce(tf.ones([2]), op=hvd.Sum)
        last_joined_rank = hvd.join()
        assert last_joined_rank.dtype == tf.int32 and int(last_joined_rank) == self.size - 1
        self.expect_error("call it outside of tf.function", tf.function(hvd.join))

    def check_elastic_state(self) -> None:
        root = tf.Variable([float(self.rank)])
        state = hvd.elastic.TensorFlowState([root], epoch=self.rank)
        attempts: list[tuple[float, int]] = []

        @hvd.elastic.run
        def train(state: Any) -> str:
            attempts.append((float(root.numpy()[0]), state.epoch))
            root.assign_add([1.0])
            state.epoch += 1
            if len(attempts) == 1:
                state.commit()
                root.assign_add([100.0])
                tf.function(fail)()
            if len(attempts) == 2:
                raise HostsUpdatedInterrupt(skip_sync=True)
            return "done"

        def fail() -> None:
            raise hvd.GroupLostError("a failure that the test made")

        assert train(state) == "done"
        assert attempts == [(0.0, 0), (1.0, 1), (2.0, 2)], attempts

    def check_elastic_steps(self) -> None:
        """Rank 0 fails, so the tf.function of the other ranks fails, too."""
        variable = tf.Variable(float(self.rank))
        state = hvd.elastic.TensorFlowState([variable], batch=0)
        step, begun_steps = hvd.elastic.Step(state), []
        add_one = tf.function(lambda: variable.assign_add(hvd.allreduce(1.0, op=hvd.Sum)))
        while step.ready() and state.batch < 4:
            with step:
                begun_steps.append(state.batch)
                if begun_steps == [0, 1] and self.rank == 0:
                    variable.assign(100.0)
                    raise hvd.GroupLostError("a failure that the test made")
                add_one()
                state.batch += 1
        assert float(variable) == 4.0 * self.size
        assert begun_steps == [0, 1, 1, 2, 3]

    def check_optimizers_of_keras(self) -> None:
        keras = importlib.import_module("keras")
        optimizer = keras.optimizers.SGD(1.0)
        assert hvd.DistributedOptimizer(optimizer, backward_passes_per_step=1) is optimizer
        x = keras.Variable(1.0)
        for make in (lambda step: step, tf.function):
            x.assign(1.0)
            make(lambda: optimizer.apply([tf.constant(float(self.rank))], [x]))()
            np.testing.assert_allclose(float(x), 1 - sum(range(self.size)) / self.size, rtol=1e-6)
        layer = keras.layers.Dense(1)
        layer.build((None, 2))
        tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer)
        with tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 2]))) * self.rank
        kernel, _ = tape.gradient(loss, layer.trainable_variables)
        np.testing.assert_allclose(kernel.numpy(), self.rank / self.size, rtol=1e-6)

    def check_objects_with_a_session(self) -> None:
        share = hvd.broadcast_object_fn(root_rank=self.size - 1)
        assert share({"rank": self.rank}) == {"rank": self.size - 1}
        assert hvd.allgather_object(self.rank, session=None) == list(range(self.size))
