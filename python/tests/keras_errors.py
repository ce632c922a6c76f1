"""The errors of the Keras frontend. Each case is a call that must fail, with the whole text of its
error."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

import farandole.keras as hvd
from farandole import core
from farandole.numpy import check

Case = tuple[Callable[[], object], str]


def cases() -> Iterator[Case]:
    yield lambda: check(3), "a numpy.ndarray is needed, not a int"
    yield (
        lambda: hvd.allgather(["a"]),
        f"str32 cannot be reduced or sent; these can: {', '.join(core.dtypes)}",
    )
    yield (
        lambda: hvd.allgather(np.ones(2, ">i4")),
        "the array has the dtype >i4, whose byte order is not that of this machine: use "
        'array.astype("int32")',
    )
    yield from _optimizer_cases()
    yield from _training_cases()
    yield from _callback_cases()
    yield from _state_cases()
    yield (
        lambda: hvd.broadcast_variables([3], 0),
        "variables must be a list of variables, such as model.variables; it contains 3",
    )
    yield (
        lambda: hvd.broadcast_global_variables(0),
        "broadcast_global_variables() has no meaning in Keras 3, which keeps no list of all "
        "variables: add hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or "
        "call hvd.broadcast_variables(model.weights, root_rank)",
    )
    yield (
        lambda: hvd.SyncBatchNormalization(fused=True),
        "SyncBatchNormalization has no fused form: leave out fused=True",
    )


def _optimizer_cases() -> Iterator[Case]:
    yield (
        lambda: hvd.DistributedOptimizer("adam"),
        "optimizer must be an optimizer of Keras 3, such as keras.optimizers.Adam(0.001); got "
        "'adam'",
    )
    sgd = keras.optimizers.SGD
    distributed = hvd.DistributedOptimizer(sgd())
    yield (
        lambda: hvd.DistributedOptimizer(distributed),
        "the optimizer is distributed already, so its gradients would be combined twice: call "
        "DistributedOptimizer() once",
    )
    clipping = hvd.DistributedOptimizer(sgd(global_clipnorm=1.0))
    yield (
        lambda: clipping.register_local_var(keras.Variable(1.0)),
        "an optimizer with global_clipnorm cannot have local variables: the norm would include "
        "their gradients, which differ by rank, so the ranks would clip the shared gradients by "
        "different factors; use clipnorm or clipvalue",
    )
    yield (
        lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Max),
        f"op of an optimizer must be Average or Sum; got {hvd.Max!r}: for another op, combine "
        "the gradients by allreduce(), and use the optimizer itself",
    )
    yield (
        lambda: hvd.DistributedOptimizer(sgd()).apply([1.0, 2.0], [keras.Variable(1.0)]),
        "the number of gradients is 2, that of variables 1: give a gradient, or None, for each "
        "variable",
    )
    built = sgd()
    built.build([keras.Variable(1.0)])
    yield (
        lambda: hvd.DistributedOptimizer(built, backward_passes_per_step=2),
        "backward_passes_per_step must be set before the optimizer is built: call "
        "DistributedOptimizer() before compile() and fit()",
    )
    accumulating_optimizer = sgd(gradient_accumulation_steps=3)
    yield (
        lambda: hvd.DistributedOptimizer(accumulating_optimizer, backward_passes_per_step=2),
        "backward_passes_per_step is 2, but gradient_accumulation_steps of the optimizer is 3: "
        "give one of them",
    )
    multi_optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd()))
    yield (
        lambda: hvd.DistributedOptimizer(multi_optimizer, backward_passes_per_step=2),
        "backward_passes_per_step is 2, but a MultiOptimizer does not accumulate gradients: give "
        "gradient_accumulation_steps=2 to each of its optimizers, which then average the gradients "
        "of several batches",
    )
    layer = keras.layers.Dense(1, name="head")
    yield (
        lambda: hvd.PartialDistributedOptimizer(sgd(), local_layers=[layer]),
        f"the layer {layer!r} of local_layers is not built, so its variables do not exist yet: "
        "build the model first",
    )
    distributed.register_local_var(keras.Variable(1.0))
    yield (
        lambda: copy.deepcopy(distributed),
        "an optimizer with local variables cannot be copied, because the copy would not know them: "
        "make a new optimizer, and register them there",
    )
    with mock.patch.object(keras.config, "backend", lambda: "openvino"):
        yield (
            lambda: hvd.DistributedOptimizer(sgd()),
            "Keras uses the backend 'openvino', for which farandole.keras has no operations: set "
            "KERAS_BACKEND to one of jax, tensorflow, torch before Keras is imported",
        )


def _fit(optimizer: Any, callback: Any = None, **options: Any) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse", **options)
    callbacks = [] if callback is None else [callback]
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0, callbacks=callbacks)


def _training_cases() -> Iterator[Case]:
    yield (
        lambda: _fit(hvd.DistributedOptimizer(keras.optimizers.SGD()), jit_compile=True),
        "XLA of TensorFlow cannot compile the calls of a distributed optimizer: use "
        'model.compile(..., jit_compile=False), or "auto"',
    )
    keras.config.disable_traceback_filtering()  # filtering adds layers' arguments to error texts
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD())
    yield (
        lambda: _fit(keras.optimizers.LossScaleOptimizer(inner), run_eagerly=True),
        "the optimizer inside the LossScaleOptimizer is distributed: distribute the outer one, "
        "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
    )
    keras.config.enable_traceback_filtering()


def _callback_cases() -> Iterator[Case]:
    yield (
        lambda: hvd.callbacks.LearningRateScheduleCallback(None, 1.0),
        "initial_lr must be the learning rate that is multiplied; got None",
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    yield (
        lambda: _fit(
            keras.optimizers.SGD(schedule), hvd.callbacks.LearningRateScheduleCallback(0.1, 1.0)
        ),
        "the optimizer has a learning rate schedule of its own: give it a number, or leave out "
        "this callback",
    )
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.1)
    warm_up.set_params({})
    warm_up.set_model(keras.Sequential())
    warm_up.model.compile(keras.optimizers.SGD())
    yield (
        warm_up.on_train_begin,
        "the number of batches of an epoch is not known: pass steps_per_epoch to the callback",
    )
    yield (
        lambda: hvd.elastic.CommitStateCallback(None, batches_per_commit=-1),
        "batches_per_commit must be a whole number from 0 on; got -1",
    )
    yield (
        hvd.callbacks.BestModelCheckpoint().on_train_begin,
        "BestModelCheckpoint has no path: set its attribute filepath",
    )


def _state_cases() -> Iterator[Case]:
    headline = "the ranks cannot begin with the same variables:"
    advice = (
        "Build the model and its optimizers in the same way on all ranks before the training "
        "begins: give the model a keras.Input, or call model.build(input_shape), and call "
        "optimizer.build() of optimizers that compile() does not get"
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    yield (
        hvd.elastic.KerasState(model).sync,
        f"{headline}\n  ranks 0, 1   the model is not built\n{advice}",
    )
    layers = [keras.layers.Dense(1, name=f"layer_{i}") for i in range(2 - hvd.rank())]
    shorter = keras.Sequential([keras.Input((3,)), *layers], name="model")
    yield (
        hvd.elastic.KerasState(shorter).sync,
        f"{headline}\n  rank 1   variable 2 is missing (on rank 0, it is float32 (1, 1))\n{advice}",
    )
    layer = keras.layers.Dense(1 + hvd.rank(), name="layer")
    wider = keras.Sequential([keras.Input((3,)), layer], name="model")
    yield (
        hvd.elastic.KerasState(wider).sync,
        f"{headline}\n  rank 1   variable 0 model/layer/kernel is float32 (3, 2) (on rank 0, it is "
        f"float32 (3, 1))\n{advice}",
    )
