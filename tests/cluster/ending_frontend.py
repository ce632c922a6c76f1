"""A training with the elastic state of a frontend. If the launcher is lost, each worker writes this
state to a file.

    ending_frontend.py FOLDER FRONTEND

FRONTEND is `jax`, `tensorflow` or `keras`. When the worker with the number NUMBER begins to train,
it makes the file `trains.NUMBER` in FOLDER. At the end, it writes its state to `checkpoint.NUMBER`.
All workers must write the same.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER, FRONTEND = Path(sys.argv[1]), sys.argv[2]
WORKER_NUMBER = os.environ["FARANDOLE_ELASTIC_WORKER"]
hvd = importlib.import_module(f"farandole.{FRONTEND}")


def train_with_jax() -> None:
    jax = importlib.import_module("jax")
    allreduce = jax.jit(lambda array: hvd.allreduce(array, op=hvd.Average))
    state = hvd.elastic.JaxState(batch=0, weights=jax.numpy.zeros(8))
    save_at_end(state, lambda: state.weights)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            state.weights = allreduce(state.weights + hvd.rank())
            end_step(state)

    train(state)


def train_with_tensorflow() -> None:
    tf = importlib.import_module("tensorflow")
    weights = tf.Variable(tf.zeros(8))
    state = hvd.elastic.TensorFlowState([weights], batch=0)
    save_at_end(state, weights.numpy)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while True:
            weights.assign(hvd.allreduce(weights + float(hvd.rank()), op=hvd.Average))
            end_step(state)

    train(state)


def train_with_keras() -> None:
    keras = importlib.import_module("keras")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer=optimizer, loss="mse")
    state = hvd.elastic.KerasState(model, batch=0)
    save_at_end(state, lambda: np.concatenate([np.ravel(v) for v in model.get_weights()]))

    class BatchCounter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            show_step(state)

    @hvd.elastic.run
    def train(state: Any) -> None:
        rows = np.random.default_rng(hvd.rank()).standard_normal((64, 4)).astype("float32")
        callbacks = [BatchCounter(), hvd.elastic.CommitStateCallback(state)]
        sums = rows.sum(axis=1, keepdims=True)
        model.fit(rows, sums, batch_size=4, epochs=10**6, verbose=0, callbacks=callbacks)

    train(state)


def show_step(state: Any) -> None:
    state.batch += 1
    (FOLDER / f"trains.{WORKER_NUMBER}").touch()


def end_step(state: Any) -> None:
    show_step(state)
    state.commit()


def save_at_end(state: Any, weights: Callable[[], Any]) -> None:
    def save() -> None:
        saved_bytes = pickle.dumps((state.batch, np.asarray(weights()).tobytes()))
        (FOLDER / f"checkpoint.{WORKER_NUMBER}").write_bytes(saved_bytes)

    state.register_end_callbacks([save])


hvd.init()
{"jax": train_with_jax, "tensorflow": train_with_tensorflow, "keras": train_with_keras}[FRONTEND]()
