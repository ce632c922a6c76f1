"""Checks of models of Keras with several optimizers, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras_training import ROWS, KerasFixture, make_model

import farandole.keras as hvd
from farandole.keras.variables import optimizers_of, variables_of


def make_multi_optimizer(**options: Any) -> Any:
    """Return a MultiOptimizer, which gives the last layer its own optimizer. Keras 3.5 has no such
    class."""

    def optimizer_of(variable: Any) -> Any:
        return last_layer_optimizer if variable.shape[-1] == 1 else default_optimizer

    last_layer_optimizer, default_optimizer = (
        keras.optimizers.SGD(0.1, momentum=0.9, **options) for _ in range(2)
    )
    return keras.optimizers.MultiOptimizer(optimizer_of)


class TwoLayerModel(keras.Model):
    """Two layers with one optimizer each, as in a GAN. The model has the optimizers as attributes
    whose names are `names`, and also in a list."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(2), keras.layers.Dense(1)
        self.first.build((None, 3))
        self.last.build((None, 2))
        self.built = True
        optimizers = [
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)) for _ in range(2)
        ]
        for name, optimizer in zip(names, optimizers, strict=False):
            setattr(self, name, optimizer)
        self.all_optimizers = optimizers

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))

    def build_optimizers(self) -> None:
        for layer, optimizer in zip((self.first, self.last), self.all_optimizers, strict=True):
            optimizer.build(layer.trainable_variables)


class KerasOptimizersChecks(KerasFixture):
    def check_a_model_that_was_trained_before(self) -> None:
        """After the optimizer is distributed, fit() must not use the training step that it compiled
        before."""
        x, y = self.own_rows()

        def fit(model: Any, callbacks: Sequence[Any] = ()) -> None:
            options: Any = {"epochs": 1, "shuffle": False, "verbose": 0}
            model.fit(x, y, batch_size=ROWS // self.size, callbacks=list(callbacks), **options)

        for distributed_by in ("callback", "state", "compile"):
            model = make_model()
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
            fit(model)
            self.expect_different_replicas(model)
            optimizer = hvd.DistributedOptimizer(model.optimizer)
            model.optimizer = optimizer
            if distributed_by == "callback":
                fit(model, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
            else:
                hvd.broadcast_variables(variables_of(model), root_rank=0)
                if distributed_by == "state":
                    hvd.elastic.KerasState(model).sync()
                else:
                    model.compile(optimizer, loss="mse")
                fit(model)
            self.expect_equal_replicas(model)

    def check_optimizers_of_a_model(self) -> None:
        """The callback finds each optimizer of a model once, in the order of the attributes' names,
        and compares the variables of all of them."""
        for names in (["z", "a"], []):
            model = TwoLayerModel(names)
            assert optimizers_of(model) == model.all_optimizers[:: -1 if names else 1]
            model.build_optimizers()
            hvd.broadcast_variables(variables_of(model), root_rank=0)
            self.expect_equal_replicas(model)
            momentum = model.all_optimizers[1].momentums[0]
            momentum.assign(keras.ops.full(momentum.shape, float(self.rank)))
            self.expect_different_replicas(model)

    def check_broadcast_of_optimizers_with_names_of_their_own(self) -> None:
        """If an optimizer is not built yet on some rank, the callback broadcasts its variables
        after the first batch. The variables of the model are broadcast before this batch."""
        root = self.size - 1
        for has_to_wait in (False, True):
            keras.utils.set_random_seed(self.rank)
            model = TwoLayerModel(["d_optimizer", "g_optimizer"])
            if not has_to_wait or self.rank == root:
                model.build_optimizers()
                momentum = model.d_optimizer.momentums[0]
                momentum.assign(keras.ops.full(momentum.shape, self.rank + 5.0))
            model.compile(keras.optimizers.SGD(0.0), loss="mse")
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root)
            callback.set_model(model)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "the optimizer of this model is not distributed")
                callback.on_train_begin()
            hvd.check_parameters(model.weights)
            if has_to_wait and self.rank != root:  # the first batch also builds the optimizers
                model.build_optimizers()
            callback.on_train_batch_end(0)
            self.expect_equal_replicas(model)
            assert float(keras.ops.max(model.d_optimizer.momentums[0])) == root + 5

    def check_local_layers_of_a_multi_optimizer(self) -> None:
        """The inner optimizers of a MultiOptimizer may be made after the local variables were
        registered."""
        if not hasattr(keras.optimizers, "MultiOptimizer"):
            return
        for options in ({}, {"global_clipnorm": 0.1}):
            model = make_model(seed=1)
            optimizer = hvd.PartialDistributedOptimizer(
                make_multi_optimizer(**options), local_layers=model.layers[2]
            )
            if options:
                text = "an optimizer with global_clipnorm cannot have local variables"
                self.expect_error(text, self.train_together, model, optimizer)
            else:
                self.train_together(model, optimizer)
                hvd.check_parameters(model.layers[0].variables + model.layers[-1].variables)
                self.expect_different_replicas(model)
