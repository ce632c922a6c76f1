"""Checks of training with Keras that continues from a commit, on the backend of KERAS_BACKEND."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras_optimizers import TwoLayerModel, make_multi_optimizer
from keras_training import (
    BATCHES,
    EPOCHS,
    ROWS,
    KerasFixture,
    make_model,
    seeds_of,
    values_of,
)

import farandole.keras as hvd
from farandole.elastic import HostsUpdatedInterrupt, HostUpdateResult, ObjectState
from farandole.keras.variables import variables_of


class KerasElasticChecks(KerasFixture):
    def check_elastic_state(self) -> None:
        model = make_model(seed=self.rank + 1)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer=optimizer, loss="mse")
        x, y = self.own_rows()
        state = hvd.elastic.KerasState(model, epoch=0, batch=0)
        attempts: list[tuple[int, int]] = []
        rank = self.rank

        class TwiceFailingCallback(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if len(attempts) == 1 and (state.epoch, batch) == (1, 1):
                    raise HostsUpdatedInterrupt(skip_sync=False)
                # This rank leaves the job, so the calls of the other ranks fail, too.
                if len(attempts) == 2 and (state.epoch, batch) == (1, 1) and rank == 0:
                    raise hvd.GroupLostError("a failure that the test made")

        @hvd.elastic.run
        def train(state: Any) -> None:
            attempts.append((state.epoch, state.batch))
            model.fit(
                x,
                y,
                batch_size=ROWS // self.size,
                epochs=EPOCHS - state.epoch,
                shuffle=False,
                verbose=0,
                callbacks=[
                    TwiceFailingCallback(),
                    hvd.elastic.UpdateBatchStateCallback(state),
                    hvd.elastic.UpdateEpochStateCallback(state),
                    hvd.elastic.CommitStateCallback(state, batches_per_commit=1),
                ],
            )

        train(state)
        assert attempts == [(0, 0), (1, 1), (1, 2)], attempts
        assert (state.epoch, state.batch) == (EPOCHS, 0)
        self.expect_equal_replicas(model)
        committed = values_of(model)
        model.variables[0].assign(model.variables[0] * 0)
        state.restore()
        for one, other in zip(values_of(model), committed, strict=True):
            assert np.array_equal(one, other)

    def check_elastic_steps(self) -> None:
        """A training loop without fit(). Rank 0 fails, so the call of the other ranks fails,
        too."""
        model = make_model(seed=self.rank + 1)
        state = hvd.elastic.KerasState(model, batch=0)
        step, begun_steps = hvd.elastic.Step(state), []
        variable = model.variables[0]
        while step.ready() and state.batch < 4:
            with step:
                if not begun_steps:
                    first_variable = values_of(model)[0]
                begun_steps.append(state.batch)
                if begun_steps == [0, 1] and self.rank == 0:
                    raise hvd.GroupLostError("a failure that the test made")
                increment = hvd.allreduce(np.ones(variable.shape, "float32"), op=hvd.Sum)
                variable.assign_add(increment)
                state.batch += 1
        assert begun_steps == [0, 1, 1, 2, 3]
        np.testing.assert_allclose(values_of(model)[0], first_variable + 4 * self.size, rtol=1e-5)
        self.expect_equal_replicas(model)

    def expect_same_as_without_failure(self, make: Callable[[], Any]) -> None:
        """A rank fails in the first epoch, before the first commit."""
        x, y = self.own_rows()
        model, expected = make(), make()
        for each_model in (model, expected):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05))
            each_model.compile(optimizer=optimizer, loss="mse")
        state = hvd.elastic.KerasState(model)
        attempts: list[int] = []
        rank = self.rank

        class OnceFailingCallback(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if len(attempts) == 1 and batch == 1 and rank == 0:
                    raise hvd.GroupLostError("a failure that the test made")

        def fit(model_to_fit: Any, *callbacks: Any) -> None:
            rows = ROWS // self.size
            model_to_fit.fit(
                x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=list(callbacks)
            )

        @hvd.elastic.run
        def train(state: Any) -> None:
            attempts.append(0)
            fit(
                model,
                OnceFailingCallback(),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=0),
            )

        train(state)
        assert len(attempts) == 2
        fit(expected)
        self.expect_close_variables(variables_of(model), variables_of(expected))

    def check_elastic_state_of_an_optimizer_that_is_not_built(self) -> None:
        self.expect_same_as_without_failure(make_model)

    def check_elastic_state_without_a_model_that_is_built(self) -> None:
        """A state rejects a model that is not built, because fit() would build it with different
        weights on each rank."""
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.5), loss="mse")
        state = hvd.elastic.KerasState(model)
        self.expect_error("the model is not built", state.sync)
        if self.rank == 0:  # now the ranks differ, as if a new rank had joined
            model.build((None, 3))
        if self.size > 1:
            self.expect_error("the model is not built", state.sync)
        if self.rank > 0:
            model.build((None, 3))
        state.sync()
        self.expect_equal_replicas(model)

    def check_elastic_state_of_a_model_with_other_variables(self) -> None:
        if self.size == 1:
            return
        count, dense = 2 if self.rank == 0 else 1, keras.layers.Dense
        for layers in (
            [dense(count, name="layer")],
            [dense(1, name=f"layer_{i}") for i in range(count)],
        ):
            model = keras.Sequential([keras.Input((3,)), *layers])
            state = hvd.elastic.KerasState(model)
            self.expect_error("cannot begin with the same variables", state.sync)
        self.expect_sum_works()

    def check_elastic_state_of_a_model_that_is_not_called(self) -> None:
        """In the first model, all layers are built, but the model itself is not. In the second
        model, one layer is never used, so this layer is not built."""

        class NestedModel(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.part = make_model()

        class ModelWithUnusedLayer(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.unused = keras.layers.Dense(2), keras.layers.Dense(2)

            def call(self, x: Any) -> Any:
                return self.used(x)

        unused_layer_model = ModelWithUnusedLayer()
        unused_layer_model(np.ones((1, 3), "float32"))
        for model in (NestedModel(), unused_layer_model):
            hvd.elastic.KerasState(model).sync()
            self.expect_equal_replicas(model)

    def check_elastic_state_of_a_model_that_is_built_later(self) -> None:
        """The model is built after the state is made. So the state has never saved the model's
        variables, and a restore leaves their current values unchanged."""
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.5, momentum=0.9), loss="mse")
        state = hvd.elastic.KerasState(model)
        model.build((None, 3))
        model.optimizer.build(model.trainable_variables)
        model.variables[0].assign(np.ones((3, 2)))
        model.optimizer.learning_rate = 0.25
        state.restore()
        assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == 0.5
        assert (keras.ops.convert_to_numpy(model.variables[0]) == 1).all()

    def check_errors_of_calls_are_not_retried(self) -> None:
        """If calls do not match, a compiled step raises an error of the backend's own class. The
        elastic loop must not retry such an error."""
        if self.size == 1:
            return
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1 + self.rank)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        train = hvd.elastic.run(
            lambda state: model.fit(np.ones((2, 3)), np.ones((2, 1 + self.rank)), verbose=0)
        )
        state = ObjectState(hvd.broadcast_object, hvd.rank)
        self.expect_error("submitted differently", train, state)
        self.expect_sum_works()

    def check_a_join_keeps_the_weights_of_the_commit(self) -> None:
        """With use_ema=True and JAX, fit() replaces the weights by their averages at its end. It
        also does this if it ends because a worker joins."""
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        )
        model.compile(optimizer=optimizer, loss="mse")
        x, y = self.own_rows()
        state = hvd.elastic.KerasState(model, batch=0)
        committed: list[Any] = []
        begun_steps: list[Any] = []

        class HostAnnouncer(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if len(begun_steps) == 1 and batch == 1:
                    state.save()
                    committed[:] = [
                        value
                        for variable, value in state._values
                        if variable is not model.optimizer._learning_rate
                    ]
                    state.on_hosts_updated(0, HostUpdateResult.added)
                    state.check_host_updates()

        @hvd.elastic.run
        def train(state: Any) -> None:
            begun_steps.append(values_of(model))
            rates.append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))
            model.fit(x, y, batch_size=ROWS // self.size, verbose=0, callbacks=[HostAnnouncer()])

        rates: list[float] = []
        state.register_reset_callbacks([lambda: setattr(model.optimizer, "learning_rate", 0.125)])
        train(state)
        assert rates == [0.5, 0.125]  # the callback's change of the learning rate is kept
        restored = [
            value for value in begun_steps[1] if not np.array_equal(value, np.float32(0.125))
        ]
        for one, other in zip(restored, committed, strict=True):
            np.testing.assert_array_equal(one, other)

    def check_batches_that_are_committed_in_pairs(self) -> None:
        """After every second batch, the program commits. If train_on_batch() fails, Keras' trainer
        for JAX still has the weights of the previous batch, which may be newer than the commit. A
        restore must discard these weights."""
        model, expected = make_model(), make_model()
        for each_model in (model, expected):
            each_model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        x, y = self.own_rows()

        def train_with(model_to_train: Any, batch: int) -> None:
            own_rows = slice(batch * (ROWS // self.size), (batch + 1) * (ROWS // self.size))
            model_to_train.train_on_batch(x[own_rows], y[own_rows])

        def fail(*_: Any) -> None:
            raise hvd.GroupLostError("a failure that the test made")

        begun_steps: list[int] = []

        @hvd.elastic.run
        def train(state: Any) -> None:
            begun_steps.append(state.batch)
            while state.batch < 4:
                if len(begun_steps) == 1 and state.batch == 3:
                    model.train_function = fail
                train_with(model, state.batch)
                state.batch += 1
                if state.batch % 2 == 0:
                    state.commit()

        train(hvd.elastic.KerasState(model, batch=0))
        assert begun_steps == [0, 2]
        for batch in range(4):
            train_with(expected, batch)
        self.expect_close(model, expected)

    def check_the_state_of_an_optimizer_that_is_compiled_later(self) -> None:
        model = make_model()
        state = hvd.elastic.KerasState(model)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss="mse")
        state.commit()
        model.optimizer.learning_rate = 0.25
        state.restore()
        assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == 0.5

    def check_the_order_of_the_callbacks(self) -> None:
        """Whatever the order of the callbacks, the values in a commit belong to the same moment:
        the weights, the batch, the epoch, and the optimizer's count of batches."""
        model, trained = make_model(), 0
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        x, y = self.own_rows()

        class FailingCallback(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                nonlocal trained
                if trained == end:
                    raise hvd.GroupLostError("a failure that the test made")
                trained += 1

        def fit_one_epoch(state: Any, order: Any) -> None:
            size = ROWS // self.size
            callbacks = [FailingCallback(), *(kind(state) for kind in order)]
            remaining_rows = slice(state.batch * size, None)
            model.fit(
                x[remaining_rows],
                y[remaining_rows],
                batch_size=size,
                verbose=0,
                callbacks=callbacks,
            )

        callback_types = (
            hvd.elastic.CommitStateCallback,
            hvd.elastic.UpdateBatchStateCallback,
            hvd.elastic.UpdateEpochStateCallback,
        )
        for order in itertools.permutations(callback_types):
            trained = 0
            model.optimizer.iterations.assign(0)
            state = hvd.elastic.KerasState(model, batch=0, epoch=0)
            for end in (1, 3, BATCHES, BATCHES + 2, 2 * BATCHES):
                with contextlib.suppress(hvd.GroupLostError):
                    while state.epoch < 2:
                        fit_one_epoch(state, order)
                weights = values_of(model)
                for variable in model.variables:
                    variable.assign(variable * 0)
                model.optimizer.iterations.assign(100)
                state.batch = state.epoch = 100
                state.restore()
                assert (state.epoch, state.batch) == divmod(end, BATCHES), (order, end)
                assert keras.ops.convert_to_numpy(model.optimizer.iterations) == end
                for one, other in zip(values_of(model), weights, strict=True):
                    np.testing.assert_array_equal(one, other)

    def check_no_commit_leaves_an_epoch_without_batches(self) -> None:
        model = make_model()
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        for interval, expected in (
            (1, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]),
            (2, [(0, 2), (1, 0), (1, 2), (2, 0)]),
            (3, [(0, 3), (1, 0), (1, 3), (2, 0)]),
            (BATCHES + 1, [(1, 0), (2, 0)]),
            (0, [(1, 0), (2, 0)]),
        ):
            assert self.commits_of_fit(model, interval) == expected, interval

    def check_executions_of_several_batches(self) -> None:
        """Keras may train several batches in one execution. The callbacks must nevertheless count
        batches, not executions."""
        if keras.config.backend() == "torch":
            return  # with torch, Keras trains one batch at a time
        model = make_model()
        model.compile(keras.optimizers.SGD(0.1), loss="mse", steps_per_execution=2)
        for interval, expected in (
            (1, [(0, 2), (1, 0), (1, 2), (2, 0)]),
            (2, [(0, 2), (1, 0), (1, 2), (2, 0)]),
            (3, [(1, 0), (2, 0)]),
            (0, [(1, 0), (2, 0)]),
        ):
            assert self.commits_of_fit(model, interval) == expected, interval
        # Old versions of Keras call on_train_batch_end() with the number of the first batch of an
        # execution.
        state = hvd.elastic.KerasState(model, batch=0)
        callback = hvd.elastic.UpdateBatchStateCallback(state)
        callback.set_model(model)
        callback.set_params({"steps": 3})
        callback.on_epoch_begin(0)
        for first_batch, wanted_batch in ((0, 2), (2, 3)):
            callback.on_train_batch_begin(first_batch)
            callback.on_train_batch_end(first_batch)
            assert state.batch == wanted_batch
        # A user's own loop may call only on_train_batch_end().
        commits: list[int] = []
        state.commit = lambda: commits.append(batch)
        commit_callback = hvd.elastic.CommitStateCallback(state, batches_per_commit=2)
        commit_callback.on_train_begin()
        for batch in (*range(5), *range(5)):
            commit_callback.on_train_batch_end(batch)
        assert commits == [1, 3, 0, 2, 4]

    def commits_of_fit(self, model: Any, interval: int) -> list[tuple[int, int]]:
        """Train two epochs. Return the epoch and the batch of each commit."""
        state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        commits: list[tuple[int, int]] = []
        state.commit = lambda: commits.append((state.epoch, state.batch))
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit=interval),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        x, y = self.own_rows()
        model.fit(x, y, batch_size=ROWS // self.size, epochs=2, verbose=0, callbacks=callbacks)
        return commits

    def check_the_state_of_optimizers_with_names_of_their_own(self) -> None:
        """A new rank gets the momentum of all optimizers. A commit keeps the momentum."""
        for names, given in (
            (["d_optimizer", "g_optimizer"], False),
            ([], True),
        ):
            model = TwoLayerModel(names)
            model.build_optimizers()
            optimizers = model.all_optimizers if given else None
            momentums = [optimizer.momentums[0] for optimizer in model.all_optimizers]
            state = hvd.elastic.KerasState(model, optimizers)
            for number, momentum in enumerate(momentums):
                momentum.assign(keras.ops.full(momentum.shape, 10 * number + self.rank + 5.0))
            state.sync()
            for momentum in momentums:
                momentum.assign(momentum * 0)
            state.restore()
            largest_values = [float(keras.ops.max(momentum)) for momentum in momentums]
            assert largest_values == [5.0, 15.0], (names, given, largest_values)
            hvd.check_parameters([*model.weights, *momentums])

    def check_the_state_of_seed_generators(self) -> None:
        """A restore also restores the states of this rank's seed generators. A sync does not copy
        them to other ranks, because then dropout would drop the same units on all ranks."""
        model = make_model(seed=self.rank + 1, dropout=0.5)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        seeds_before = seeds_of(model)
        state = hvd.elastic.KerasState(model)
        for _ in range(2):
            state.sync()
            assert seeds_of(model) == seeds_before
        self.train_together(model, model.optimizer)
        assert seeds_of(model) != seeds_before
        state.restore()
        assert seeds_of(model) == seeds_before

    def check_local_variables_of_a_state(self) -> None:
        """All ranks get the state of rank 0. But a rank that has trained before keeps its local
        variables and their momentum. Only a new rank gets these from rank 0."""
        self.sync_local_variables(keras.optimizers.SGD(0.1, momentum=0.9))
        if hasattr(keras.optimizers, "MultiOptimizer"):
            self.sync_local_variables(make_multi_optimizer())

    def sync_local_variables(self, base_optimizer: Any) -> None:
        model = make_model(seed=self.rank + 1)
        local_layer = model.layers[-1]
        optimizer = hvd.PartialDistributedOptimizer(base_optimizer, local_layers=local_layer)
        model.compile(optimizer, loss="mse")
        state = hvd.elastic.KerasState(model)
        state.sync()
        self.expect_equal_replicas(model)
        momentums = {
            id(variable): momentum
            for inner_optimizer in getattr(optimizer, "optimizers", [optimizer])
            for variable, momentum in zip(
                inner_optimizer._trainable_variables, inner_optimizer.momentums, strict=True
            )
        }
        local_state, shared_state = (
            [variable, momentums[id(variable)]]
            for variable in (local_layer.kernel, model.variables[0])
        )
        for is_new in (False, 0 < self.rank == self.size - 1):
            for variable in [*local_state, *shared_state]:
                variable.assign(keras.ops.full(variable.shape, self.rank + 5.0))
            if is_new:
                state = hvd.elastic.KerasState(model)
            state.sync()
            expected = [
                *[5 if is_new else self.rank + 5] * len(local_state),
                *[5] * len(shared_state),
            ]
            for _ in range(2):
                for variable, number in zip([*local_state, *shared_state], expected, strict=True):
                    assert (keras.ops.convert_to_numpy(variable) == number).all(), number
                    variable.assign(variable * 0)
                state.restore()
