"""Training with Keras on the backend that KERAS_BACKEND names. After fit(), the replicas are equal
bit by bit, and they have learned what one process learns from all data."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
from suite import Suite

import farandole.keras as hvd
from farandole.comparison import allreduce_max
from farandole.keras.optimizer import is_distributed
from farandole.keras.variables import variables_of

assert os.environ.get("WANTED_KERAS", keras.__version__) == keras.__version__

ROWS = 24  # of a batch of all ranks together; a multiple of each tested number of ranks
BATCHES = 4
VOCABULARY_SIZE = 20
EPOCHS = 2


@contextmanager
def quick_torch_compile() -> Iterator[None]:
    """Let torch.compile() trace and split programs as usual, but skip the C++ compiler, which would
    take a minute."""
    if keras.config.backend() != "torch":
        yield
        return
    torch = importlib.import_module("torch")
    original_compile = torch.compile
    torch.compile = functools.partial(original_compile, backend="aot_eager")
    try:
        yield
    finally:
        torch.compile = original_compile


class KerasFrontend:
    """A Suite needs a frontend, but these checks use only the module `api` of this frontend. The
    conformance suites test the frontends of the backends."""

    api = hvd
    dtypes: Sequence[str] = ()
    has_async = False
    has_in_place = False

    def tensor(self, values: Any, dtype: str) -> Any:
        return np.asarray(values).astype(dtype)

    def array(self, tensor: Any) -> Any:
        return np.asarray(tensor)

    def dtype(self, tensor: Any) -> str:
        return str(np.asarray(tensor).dtype.name)


def make_model(seed: int = 1, dropout: float = 0.0) -> Any:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(VOCABULARY_SIZE, 4),
            layers.Flatten(),
            layers.Dense(5, activation="tanh"),
            layers.Dropout(dropout, seed=seed),
            layers.Dense(1),
        ]
    )


def values_of(model: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables_of(model)]


def seeds_of(model: Any) -> list[Any]:
    """Return the current states of the model's seed generators."""
    weights = set(map(id, model.weights))
    states = [variable for variable in model.variables if id(variable) not in weights]
    return [keras.ops.convert_to_numpy(state).tolist() for state in states]


class TwoOptimizerModel(keras.Model):
    """A model of the TensorFlow backend, in which compile() gets no optimizer, as in a GAN."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.part, self.optimizer_of_part = make_model(), optimizer

    def train_step(self, data: Any) -> Any:
        x, y = data
        with importlib.import_module("tensorflow").GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.part(x) - y))
        variables = self.part.trainable_variables
        self.optimizer_of_part.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class RateRecorder(keras.callbacks.Callback):
    """Keeps the learning rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


class KerasFixture(Suite):
    def __init__(self) -> None:
        super().__init__(KerasFrontend())
        random = np.random.default_rng(3)
        self.words = random.integers(0, VOCABULARY_SIZE, (BATCHES, ROWS, 3)).astype("int32")
        self.y = random.standard_normal((BATCHES, ROWS, 1)).astype("float32")

    def own_rows(self) -> tuple[Any, Any]:
        """Return this rank's part of each batch, one batch after another."""
        own_slice = slice(self.rank, None, self.size)
        return np.concatenate(self.words[:, own_slice]), np.concatenate(self.y[:, own_slice])

    def all_rows(self) -> tuple[Any, Any]:
        return np.concatenate(self.words), np.concatenate(self.y)

    def train_together(self, model: Any, optimizer: Any, **options: Any) -> Any:
        x, y = self.own_rows()
        return self.fit(model, optimizer, x, y, ROWS // self.size, **options)

    def train_alone(self, model: Any, optimizer: Any, **options: Any) -> Any:
        return self.fit(model, optimizer, *self.all_rows(), ROWS, **options)

    # size waiver: the data, and the arguments of fit() that the checks change
    def fit(
        self,
        model: Any,
        optimizer: Any,
        x: Any,
        y: Any,
        batch_size: int,
        *,
        callbacks: Sequence[Any] = (),
        jit_compile: Any = "auto",
        epochs: int = EPOCHS,
    ) -> Any:
        model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
        model.fit(
            x,
            y,
            batch_size=batch_size,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks),
        )
        return model

    def expect_close(self, actual: Any, expected: Any) -> None:
        self.expect_close_variables(actual.variables, expected.variables)

    def expect_close_variables(self, actual: Sequence[Any], expected: Sequence[Any]) -> None:
        for one, other in zip(actual, expected, strict=True):
            arrays = [keras.ops.convert_to_numpy(variable) for variable in (one, other)]
            np.testing.assert_allclose(*arrays, rtol=2e-4, atol=2e-6)

    def expect_equal_replicas(self, model: Any) -> None:
        hvd.check_parameters(model)

    def expect_different_replicas(self, model: Any) -> None:
        if self.size > 1:
            self.expect_error("are not the same on all ranks", hvd.check_parameters, model)


class KerasTrainingChecks(KerasFixture):
    def check_gradients_of_different_variables(self) -> None:
        """Ranks that have gradients of different variables get errors, not averages of them."""
        if keras.config.backend() == "jax":  # with JAX, Keras needs a gradient of each variable
            return
        head_variables = [keras.Variable([1.0]), keras.Variable([1.0])]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        ones = keras.ops.ones((1,))
        optimizer.apply([ones, None], head_variables)
        if self.size > 1:
            own_gradients = [ones if i == self.rank else None for i in range(2)]
            self.expect_error(
                "gradients of different variables", optimizer.apply, own_gradients, head_variables
            )
            count = 1 + self.rank % 2
            self.expect_error("", optimizer.apply, [ones] * count, head_variables[:count])
        assert [float(keras.ops.sum(head)) for head in head_variables] == [0.0, 1.0]

    def check_fit_as_one_process_with_all_data(self) -> None:
        for make in (
            lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            lambda: keras.optimizers.Adam(0.01),
            lambda: keras.optimizers.SGD(0.1, clipnorm=0.05, use_ema=True),
        ):
            distributed = self.train_together(make_model(), hvd.DistributedOptimizer(make()))
            self.expect_equal_replicas(distributed)
            self.expect_close(distributed, self.train_alone(make_model(), make()))
        # Without the distributed optimizer, the replicas differ.
        self.expect_different_replicas(self.train_together(make_model(), keras.optimizers.SGD(0.1)))

    def check_options(self) -> None:
        expected = self.train_alone(make_model(), keras.optimizers.SGD(0.1))
        summed = self.train_together(
            make_model(),
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 / self.size), op=hvd.Sum),
        )
        self.expect_close(summed, expected)
        for options in (
            {"sparse_as_dense": True},
            {"gradient_predivide_factor": 2.0},
            {"num_groups": 2, "device_dense": "/cpu:0"},
        ):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
            self.expect_close(self.train_together(make_model(), optimizer), expected)
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            compressed = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), compression=compression
            )
            self.expect_equal_replicas(self.train_together(make_model(), compressed))

    def check_several_batches_for_a_step(self) -> None:
        for is_averaged, rate in ((True, 0.1), (False, 0.05)):
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(rate),
                backward_passes_per_step=2,
                average_aggregated_gradients=is_averaged,
            )
            distributed = self.train_together(make_model(), optimizer)
            single_process = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
            self.expect_equal_replicas(distributed)
            self.expect_close(distributed, self.train_alone(make_model(), single_process))

    def check_jit_compile(self) -> None:
        with quick_torch_compile():
            self.compare_values_of_jit_compile()

    def compare_values_of_jit_compile(self) -> None:
        expected = self.train_alone(make_model(), keras.optimizers.SGD(0.1))
        for value in ("auto", False, True):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            if value is True and keras.config.backend() == "tensorflow":
                self.expect_error(
                    "use model.compile(..., jit_compile=False)",
                    self.train_together,
                    make_model(),
                    optimizer,
                    jit_compile=True,
                )
            else:
                distributed = self.train_together(make_model(), optimizer, jit_compile=value)
                self.expect_equal_replicas(distributed)
                self.expect_close(distributed, expected)

    def check_auto_on_a_machine_with_a_gpu(self) -> None:
        """On a machine with a GPU, Keras itself would choose XLA."""
        if keras.config.backend() != "tensorflow":
            return
        tf = importlib.import_module("tensorflow")

        class Device:
            device_type = "GPU"

        original_function = tf.config.list_physical_devices
        tf.config.list_physical_devices = lambda *kind: [Device()]
        try:
            for optimizer, expected in (
                (hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), False),
                (keras.optimizers.SGD(0.1), True),
            ):
                model = make_model()
                model.compile(optimizer=optimizer, loss="mse")
                assert model.jit_compile is expected, optimizer
                model = TwoOptimizerModel(optimizer)
                assert model.jit_compile is expected, optimizer
            # A model that was not compiled has no optimizer.
            model = make_model()
            assert not hasattr(model, "optimizer") and model.jit_compile is True
        finally:
            tf.config.list_physical_devices = original_function

    def check_models_that_are_not_compiled(self) -> None:
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))  # this may change how Keras compiles
        assert make_model().predict(self.words[0], verbose=0).shape == (ROWS, 1)

    def check_optimizers_with_names_of_their_own(self) -> None:
        """If XLA compiled the step, TensorFlow would raise an error that does not say what to
        do."""
        if keras.config.backend() != "tensorflow":
            return
        for value in ("auto", True):
            model = TwoOptimizerModel(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
            model.compile(jit_compile=value)
            if value is True:
                expected = "use model.compile(..., jit_compile=False)"
                self.expect_error(expected, model.fit, *self.own_rows(), verbose=0)
            else:
                model.fit(*self.own_rows(), verbose=0)

    def check_copies_are_distributed(self) -> None:
        expected = self.train_alone(make_model(), keras.optimizers.SGD(0.1))
        for copied in (
            copy.deepcopy,
            copy.copy,
            lambda one: pickle.loads(pickle.dumps(one)),
            lambda one: one.from_config(one.get_config()),
        ):
            original = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            optimizer = copied(original)
            assert optimizer is not original and is_distributed(optimizer)
            assert isinstance(optimizer, keras.optimizers.SGD)
            self.expect_close(self.train_together(make_model(), optimizer), expected)

    def check_local_layers(self) -> None:
        for scale in (True, False):
            model = make_model()
            hidden = model.layers[2]
            x, y = self.own_rows()
            optimizer = hvd.PartialDistributedOptimizer(
                keras.optimizers.SGD(0.1), local_layers=hidden, scale_local_gradients=scale
            )
            self.fit(model, optimizer, x, y, len(x), epochs=1)
            single_process = make_model()
            rate = 0.1 / self.size if scale else 0.1
            self.fit(single_process, keras.optimizers.SGD(rate), x, y, len(x), epochs=1)
            self.expect_close_variables(hidden.variables, single_process.layers[2].variables)
            hvd.check_parameters(model.layers[0].variables + model.layers[-1].variables)
            self.expect_different_replicas(model)

    def check_gradients_outside_of_the_group(self) -> None:
        """The members of a process set train like one process that has the data of all members. A
        rank outside of the set trains alone."""
        x, y = (np.reshape(data, (BATCHES, ROWS, -1)) for data in (self.words, self.y))
        for group in self.groups:
            members = group.ranks if group.included() else [self.rank]
            rows = np.isin(np.arange(ROWS) % self.size, members)
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=group)
            distributed = self.train_together(make_model(), optimizer)
            member_data = np.concatenate(x[:, rows]), np.concatenate(y[:, rows])
            sgd = keras.optimizers.SGD(0.1)
            single_process = self.fit(make_model(), sgd, *member_data, int(rows.sum()))
            self.expect_close(distributed, single_process)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), backward_passes_per_step=2, process_set=group
            )
            variables = [keras.Variable(0.0), keras.Variable(0.0)]
            optimizer.register_local_var(variables[1])
            optimizer.build(variables)
            for _ in range(2):
                optimizer.apply([keras.ops.ones(()) * self.rank, keras.ops.ones(())], variables)
            expected = [-2.0 * np.mean(members), -2.0 / len(members)]
            np.testing.assert_allclose([float(variable) for variable in variables], expected)

    def check_local_variables_over_several_batches(self) -> None:
        """An optimizer may accumulate the gradients of several batches. It must then divide the
        gradients of local variables by the same numbers as those of shared variables."""
        for is_averaged, expected in ((False, -2.0), (True, -1.0)):
            shared_variable, local_variable = keras.Variable(0.0), keras.Variable(0.0)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=is_averaged,
                scale_local_gradients=False,
            )
            optimizer.register_local_var(local_variable)
            optimizer.build([shared_variable, local_variable])
            for _ in range(2):
                optimizer.apply(
                    [keras.ops.ones(()), keras.ops.ones(())], [shared_variable, local_variable]
                )
            assert (float(shared_variable), float(local_variable)) == (expected, expected), (
                is_averaged,
                float(local_variable),
            )

    def check_loss_scaling(self) -> None:
        scaled = keras.optimizers.LossScaleOptimizer
        distributed = self.train_together(
            make_model(), hvd.DistributedOptimizer(scaled(keras.optimizers.SGD(0.1)))
        )
        self.expect_equal_replicas(distributed)
        self.expect_close(
            distributed, self.train_alone(make_model(), scaled(keras.optimizers.SGD(0.1)))
        )
        self.expect_error(
            "distribute the outer one",
            self.train_together,
            make_model(),
            scaled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))),
        )
        keras.config.set_dtype_policy("mixed_float16")
        try:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
            assert isinstance(optimizer, scaled)
            self.expect_equal_replicas(self.train_together(make_model(), optimizer))
        finally:
            keras.config.set_dtype_policy("float32")

    def check_loss_scaling_with_local_variables(self) -> None:
        """If a local gradient overflows on one rank, all ranks skip the update. If the backend
        allows variables without a gradient, some ranks have no local gradient."""
        self.train_with_an_overflow(has_gradient=True)
        if keras.config.backend() != "jax":
            self.train_with_an_overflow(has_gradient=self.size == 1 or self.rank > 0)

    def train_with_an_overflow(self, *, has_gradient: bool) -> None:
        keras.utils.set_random_seed(1)
        inputs = [keras.Input((1,)), keras.Input((1,))]
        shared_layer, local_layer = (keras.layers.Dense(1, use_bias=False) for _ in range(2))
        # Use a layer with and without a gradient, because the number of layers changes the order of
        # the model's variables.
        function = keras.ops.negative if has_gradient else keras.ops.stop_gradient
        local_output = keras.layers.Lambda(function)(local_layer(-inputs[1]))
        model = keras.Model(inputs, shared_layer(inputs[0]) + local_output)
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=4.0),
            local_layers=local_layer,
        )
        model.compile(optimizer, loss=lambda _, predictions: keras.ops.mean(predictions))
        values_before = [
            keras.ops.convert_to_numpy(layer.kernel).item() for layer in (shared_layer, local_layer)
        ]
        x = np.ones((4, 1), "float32")
        own_inputs = x * self.size
        if self.rank == self.size - 1:
            own_inputs[2] = np.inf
        model.fit([x, own_inputs], x, batch_size=1, shuffle=False, verbose=0)
        values_after = [
            keras.ops.convert_to_numpy(layer.kernel).item() for layer in (shared_layer, local_layer)
        ]
        steps = np.multiply([3, 3 if has_gradient else 0], 0.5)
        np.testing.assert_allclose(values_after, np.subtract(values_before, steps), rtol=1e-5)
        self.expect_equal_replicas(
            [shared_layer.kernel, optimizer.dynamic_scale, optimizer.iterations]
        )

    def check_a_loss_that_is_not_scaled(self) -> None:
        if keras.config.backend() == "jax":
            return  # with JAX, apply() of Keras' LossScaleOptimizer raises a TypeError
        keras.config.set_dtype_policy("mixed_float16")
        try:
            variable = keras.Variable(1.0, dtype="float32")
            for scales_loss in (False, True):
                optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
                optimizer.build([variable])
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    gradient = keras.ops.ones(())
                    for _ in range(2):
                        gradient = optimizer.scale_loss(gradient) if scales_loss else gradient
                        optimizer.apply([gradient], [variable])
                warning_texts = [str(warning.message) for warning in caught]
                assert len(warning_texts) == (not scales_loss), warning_texts
                assert scales_loss or "optimizer.scale_loss(loss)" in warning_texts[0]
        finally:
            keras.config.set_dtype_policy("float32")

    def check_variables_of_the_root(self) -> None:
        """The ranks begin with different weights, and a random generator has a state in uint32."""
        root = self.size - 1
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root)
        model = make_model(seed=self.rank + 1, dropout=0.5)
        self.train_together(model, optimizer, callbacks=[callback])
        self.expect_equal_replicas(model)
        # Each rank keeps its own seed, so that its dropout drops other units.
        assert [seed for seed, _ in seeds_of(model)] == [self.rank + 1]
        model = make_model(seed=self.rank + 1)
        self.expect_different_replicas(model)
        hvd.broadcast_variables(model.variables, root_rank=root)
        self.expect_equal_replicas(model)
        for one, other in zip(values_of(model), values_of(make_model(seed=root + 1)), strict=True):
            assert np.array_equal(one, other)

    def check_the_first_step_with_variables_of_the_root(self) -> None:
        """Before fit(), some ranks have built or used their optimizer, and others have not."""
        root = self.size - 1

        class FirstStepChecker(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                hvd.check_parameters(self.model)

        def optimizer() -> Any:
            return keras.optimizers.Adam(0.01, name="adam")  # a name that all ranks share

        single_process = self.train_alone(make_model(seed=root + 1), optimizer())
        model = make_model(seed=self.rank + 1)
        distributed = hvd.DistributedOptimizer(optimizer())
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(root),
            FirstStepChecker(),
        ]
        self.train_together(model, distributed, callbacks=callbacks)
        self.expect_close_variables(variables_of(model), variables_of(single_process))
        if self.rank != root:
            distributed = hvd.DistributedOptimizer(optimizer())
        self.train_together(model, distributed, callbacks=callbacks)
        self.train_alone(single_process, single_process.optimizer)
        self.expect_close_variables(variables_of(model), variables_of(single_process))

    def check_variables_that_do_not_exist_yet(self) -> None:
        """A model without an input layer is built by its first batch."""
        keras.utils.set_random_seed(self.rank)
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        x, y = self.own_rows()
        if self.rank == 0:
            model.build((None, 3))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        self.fit(model, optimizer, x.astype("float32"), y, 4, callbacks=[callback])
        self.expect_equal_replicas(model)

    def check_local_variables_of_the_callback(self) -> None:
        model = make_model(seed=self.rank + 1)
        local_variables = model.layers[-1].variables
        values_before = [
            np.array(keras.ops.convert_to_numpy(variable)) for variable in local_variables
        ]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
            0, local_variables=local_variables
        )
        self.train_together(model, optimizer, callbacks=[callback])
        for variable, value in zip(local_variables, values_before, strict=True):
            assert np.array_equal(keras.ops.convert_to_numpy(variable), value)
        self.expect_different_replicas(model)

    def check_names_of_checks(self) -> None:
        """The comparison is a call whose name contains check_parameters, so that a report about
        waiting ranks shows in which function the ranks wait."""
        if self.size == 1:
            return
        text = "`check_parameters.same` was submitted differently"
        if self.rank == 0:
            name = "check_parameters.same"
            self.expect_error(text, allreduce_max, [1], name, hvd.global_process_set)
        else:
            self.expect_error(text, hvd.check_parameters, [keras.Variable(1.0)])

    def check_metrics_of_all_ranks(self) -> None:
        model = make_model()
        x, y = self.own_rows()
        mean_losses: list[float] = []
        own_losses: list[float] = []

        class OwnLossRecorder(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                own_losses.append(logs["loss"])

        class MeanLossRecorder(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                mean_losses.append(logs["loss"])

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        averager = hvd.callbacks.MetricAverageCallback()
        callbacks = [OwnLossRecorder(), averager, MeanLossRecorder()]
        self.fit(model, optimizer, x, y, 4, callbacks=callbacks)
        expected = np.mean(hvd.allgather_object(own_losses), 0)
        np.testing.assert_allclose(mean_losses, expected, rtol=1e-9)
        assert set(map(tuple, hvd.allgather_object(mean_losses))) == {tuple(mean_losses)}

    def check_metrics_that_are_arrays(self) -> None:
        own_values = np.array([self.rank, 2.0, -self.rank], "float32")
        for metric in (own_values, keras.ops.convert_to_tensor(own_values)):
            logs = {"score": metric, "loss": keras.ops.convert_to_tensor(float(self.rank))}
            hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
            mean = (self.size - 1) / 2
            assert logs["score"].tolist() == [mean, 2.0, -mean], logs
            assert logs["loss"] == mean and isinstance(logs["loss"], float)

    def learning_rates_with(self, *callbacks: Any, epochs: int = 3) -> list[float]:
        """Return the learning rate of each batch."""
        optimizer, recorder = hvd.DistributedOptimizer(keras.optimizers.SGD(0.3)), RateRecorder()
        self.train_together(
            make_model(), optimizer, callbacks=[*callbacks, recorder], epochs=epochs
        )
        return recorder.rates

    def check_learning_rates(self) -> None:
        rate, size = 0.1, self.size
        warm_up = self.learning_rates_with(
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2)
        )
        expected = [
            rate / size * ((batch + 1) / BATCHES * (size - 1) / 2 + 1)
            for batch in range(2 * BATCHES)
        ]
        np.testing.assert_allclose(warm_up, [*expected, *[rate] * BATCHES], rtol=1e-5)
        steps = hvd.callbacks.LearningRateScheduleCallback
        # With a constant multiplier, the learning rate decays exponentially. The decay begins in
        # start_epoch.
        actual = self.learning_rates_with(
            steps(rate, lambda epoch: 0.5**epoch, end_epoch=1),
            steps(0.7, 0.9, start_epoch=1),
            epochs=4,
        )
        expected = [factor for factor in (rate, 0.7, 0.63, 0.567) for _ in range(BATCHES)]
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
        actual = self.learning_rates_with(steps(rate, 0.5, start_epoch=1, staircase=False))
        expected = [rate * 0.5 ** (batch / BATCHES) for batch in range(2 * BATCHES)]
        np.testing.assert_allclose(actual, [*[np.float32(0.3)] * BATCHES, *expected], rtol=1e-5)
        smooth = steps(rate, lambda epoch: 1 / (1 + epoch), staircase=False)
        expected = [rate / (1 + batch / BATCHES) for batch in range(3 * BATCHES)]
        np.testing.assert_allclose(self.learning_rates_with(smooth), expected, rtol=1e-5)
        # The next fit() has fewer batches per epoch, as after a change of the number of ranks.
        x, y = (rows[: len(rows) // 2] for rows in self.own_rows())
        sgd, recorder, size = keras.optimizers.SGD(1.0), RateRecorder(), ROWS // self.size
        self.fit(make_model(), sgd, x, y, size, callbacks=[smooth, recorder], epochs=1)
        expected = [rate / (1 + batch / (BATCHES // 2)) for batch in range(BATCHES // 2)]
        np.testing.assert_allclose(recorder.rates, expected, rtol=1e-5)

    def check_models_from_files(self) -> None:
        expected = self.train_alone(make_model(), keras.optimizers.SGD(0.1, momentum=0.9))
        self.train_alone(expected, expected.optimizer)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model = self.train_together(make_model(), optimizer)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
            self.expect_error("set its attribute filepath", best.on_train_begin)
            best.filepath = str(path.with_name("best.keras"))
            x, y = self.own_rows()
            model.save(path)
            loaded = hvd.load_model(path, custom_optimizers=[keras.optimizers.SGD])
            loaded.fit(x, y, batch_size=ROWS // self.size, epochs=EPOCHS, shuffle=False, verbose=0)
            self.expect_equal_replicas(loaded)
            self.expect_close(loaded, expected)
            loaded.fit(x, y, epochs=1, verbose=0, callbacks=[best])
            assert Path(best.filepath).exists()

    def check_a_model_from_a_file_with_xla(self) -> None:
        """With jit_compile="auto", Keras decides whether to use XLA, and saves this decision in the
        file."""
        if keras.config.backend() == "torch":
            return  # torch.compile would take minutes
        undistributed = make_model()
        undistributed.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=True)
        with tempfile.TemporaryDirectory() as folder:
            undistributed.save(Path(folder) / "model.keras")
            loaded = hvd.load_model(Path(folder) / "model.keras")
        x, y = self.own_rows()
        loaded.fit(x, y, batch_size=ROWS // self.size, epochs=1, verbose=0)
        self.expect_equal_replicas(loaded)

    def check_models_from_files_over_several_batches(self) -> None:
        def optimizer() -> Any:
            return hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), op=hvd.Sum, backward_passes_per_step=2
            )

        x, y = self.own_rows()
        model = self.fit(make_model(), optimizer(), x, y, ROWS // self.size, epochs=1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            loaded = hvd.load_model(path, op=hvd.Sum, backward_passes_per_step=2)
        for each_model in (model, loaded):
            each_model.fit(x, y, batch_size=ROWS // self.size, epochs=1, shuffle=False, verbose=0)
        self.expect_close(loaded, model)

    def check_values(self) -> None:
        total = float(sum(range(self.size)))
        assert hvd.allreduce(self.rank, op=hvd.Sum) == total
        assert hvd.allreduce(float(self.rank), average=False) == total
        assert hvd.allreduce([float(self.rank)], average=True).tolist() == [total / self.size]
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            values = np.array([self.rank, 1], "float32")
            result = hvd.allreduce(values, op=hvd.Sum, compression=compression)
            assert result.dtype == np.float32 and result.tolist() == [total, self.size]
            # A cast to the other dtype of 2 bytes would lose range or digits.
            for dtype, value in (("bfloat16", 2.0**100), ("float16", 1 + 2.0**-10)):
                tensor = keras.ops.cast([value], dtype)
                result = np.array(hvd.allreduce(tensor, compression=compression))
                assert result.dtype.name == dtype and result.astype(float).tolist() == [value]
        tensor = keras.ops.full((2,), float(self.rank))
        result = hvd.broadcast(tensor, self.size - 1)
        assert np.array(result).tolist() == [self.size - 1] * 2
        assert hvd.allgather(np.full(self.rank + 1, self.rank)).tolist() == [
            rank for rank in range(self.size) for _ in range(rank + 1)
        ]
        part = hvd.reducescatter(np.ones((self.size, 2), "float32"), op=hvd.Sum)
        assert part.tolist() == [[self.size] * 2]

    def check_values_of_tensors(self) -> None:
        """As in Horovod, calls on tensors and variables of TensorFlow return tensors. Calls on
        other values return NumPy arrays."""
        is_tensorflow = keras.config.backend() == "tensorflow"
        for dtype in ("float32", "float16", "bfloat16", "int32"):
            tensor = keras.ops.cast(keras.ops.convert_to_tensor([[self.rank, 3]]), dtype)
            variable = keras.Variable(tensor, dtype=dtype, trainable=False)
            for value in (tensor, variable):
                actual = [
                    hvd.allreduce(value, name="loss", op=hvd.Sum),
                    hvd.allgather(value),
                    hvd.broadcast(value, self.size - 1),
                    hvd.reducescatter(keras.ops.concatenate([value] * self.size), op=hvd.Sum),
                ]
                sums = [[sum(range(self.size)), 3 * self.size]]
                rows = [[rank, 3] for rank in range(self.size)]
                for result, expected in zip(actual, (sums, rows, rows[-1:], sums), strict=True):
                    assert keras.backend.standardize_dtype(result.dtype) == dtype
                    array = result.numpy() if is_tensorflow else result
                    assert array.astype("float64").tolist() == expected
        mean = hvd.allreduce(keras.ops.ones(()), compression=hvd.Compression.fp16)
        assert (mean.numpy() if is_tensorflow else mean).dtype == np.float32 and float(mean) == 1
        assert isinstance(hvd.allreduce(np.ones(1)), np.ndarray)

    def check_batch_normalization_of_uneven_batches(self) -> None:
        """Each rank has a different number of rows. Some rows are masked and have the value NaN."""
        random = np.random.default_rng(6)
        rows = [random.standard_normal((rank + 2, 5, 3)).astype("float32") for rank in range(4)]
        layer = hvd.SyncBatchNormalization(momentum=0.0)
        layer(keras.ops.convert_to_tensor(rows[self.rank]), training=True)
        values = np.concatenate([part.reshape(-1, 3) for part in rows[: self.size]])
        self.expect_moments(layer, values)
        masks = [random.integers(0, 2, part.shape[:2]).astype(bool) for part in rows]
        for part, mask in zip(rows, masks, strict=True):
            mask[0, 0], mask[1, 1] = True, False
            part[~mask] = np.nan
        layer(
            keras.ops.convert_to_tensor(rows[self.rank]),
            training=True,
            mask=keras.ops.convert_to_tensor(masks[self.rank]),
        )
        unmasked_rows = [part[mask] for part, mask in zip(rows, masks, strict=True)]
        self.expect_moments(layer, np.concatenate(unmasked_rows[: self.size]))

    def expect_moments(self, layer: Any, values: Any) -> None:
        for actual, expected in (
            (layer.moving_mean, values.mean(0)),
            (layer.moving_variance, values.var(0)),
        ):
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(actual), expected, rtol=1e-5, atol=1e-6
            )

    def check_batch_normalization_of_masked_sequences(self) -> None:
        """When fit() compiles the step, the number of rows of a batch is not known yet."""
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(VOCABULARY_SIZE, 4, mask_zero=True),
                hvd.SyncBatchNormalization(),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        hvd.broadcast_variables(model.variables, root_rank=0)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        self.fit(model, optimizer, *self.own_rows(), 5)  # the last batch is smaller
        self.expect_equal_replicas(model)

    def check_batch_normalization_of_all_ranks(self) -> None:
        random = np.random.default_rng(5)
        x = random.standard_normal((BATCHES, ROWS, 3)).astype("float32")
        y = (x @ np.array([[1.0], [2.0], [3.0]])).astype("float32")

        def model(layer: Callable[[], Any]) -> Any:
            keras.utils.set_random_seed(1)
            return keras.Sequential(
                [
                    keras.Input((3,)),
                    keras.layers.Dense(4, activation="tanh"),
                    layer(),
                    keras.layers.Dense(1),
                ]
            )

        own_slice = slice(self.rank, None, self.size)
        distributed = self.fit(
            model(hvd.SyncBatchNormalization),
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
            np.concatenate(x[:, own_slice]),
            np.concatenate(y[:, own_slice]),
            ROWS // self.size,
        )
        single_process = self.fit(
            model(keras.layers.BatchNormalization),
            keras.optimizers.SGD(0.1),
            np.concatenate(x),
            np.concatenate(y),
            ROWS,
        )
        self.expect_equal_replicas(distributed)
        self.expect_close(distributed, single_process)
