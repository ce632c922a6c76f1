"""Train on Fashion-MNIST with JAX so that the training survives the loss of a worker. The loop
repeats a failed step with the workers that are left.

    farandole run -n 4 --min-workers 2 python examples/jax/elastic_fashion_mnist.py
    farandole run -n 4 --min-workers 2 python examples/jax/elastic_fashion_mnist.py \
        --kill-at 100 200

With --kill-at, worker 1 kills itself in the first given step, worker 2 in the second, and so on.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from fashion_mnist import Arrays, accuracy, initial_parameters, load, loss_of

import farandole.jax as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on Fashion-MNIST, with an elastic state.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--limit", type=int, help="use only this many images")
    parser.add_argument("--kill-at", type=int, nargs="+", default=[], help="a step for each worker")
    return parser.parse_args()


def kill_step(options: argparse.Namespace) -> int:
    # The workers are numbered in the order in which they are started.
    number = int(os.environ.get("FARANDOLE_ELASTIC_WORKER", "-1"))
    return dict(enumerate(options.kill_at, start=1)).get(number, -1)


def train(data: Arrays, options: argparse.Namespace) -> hvd.elastic.JaxState:
    images, classes = data
    optimizer = hvd.DistributedOptimizer(optax.sgd(options.lr, momentum=0.9))
    params = initial_parameters(options.seed)
    state = hvd.elastic.JaxState(
        params=params, opt_state=optimizer.init(params), epoch=0, images_done=0, steps_done=0
    )

    @functools.lru_cache(maxsize=1)
    def order_of(epoch: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng((options.seed, epoch)).permutation(len(images))

    @jax.jit
    def update(params: Any, opt_state: Any, images: jax.Array, classes: jax.Array) -> Any:
        gradients = jax.grad(loss_of)(params, images, classes)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def show_progress() -> None:
        if hvd.rank() == 0:
            print(f"step {state.steps_done}: {hvd.size()} workers go on", flush=True)

    state.register_reset_callbacks([show_progress])
    last_step = kill_step(options)
    step = hvd.elastic.Step(state)
    while step.ready() and state.epoch < options.epochs:
        with step:  # a failed step is repeated
            if state.steps_done == last_step:
                os.kill(os.getpid(), signal.SIGKILL)
            order = order_of(state.epoch)
            begin = state.images_done + hvd.rank() * options.batch_size
            # At the end of an epoch, some images are used twice.
            batch = order[np.arange(begin, begin + options.batch_size) % len(order)]
            state.params, state.opt_state = update(
                state.params, state.opt_state, images[batch], classes[batch]
            )
            state.images_done += hvd.size() * options.batch_size
            state.steps_done += 1
            if state.images_done >= len(order):
                state.epoch, state.images_done = state.epoch + 1, 0
    return state


def main() -> None:
    options = parse_arguments()
    # Load the data before init(). If a new worker loaded it after init(), the other workers would
    # have to wait.
    data, test = load(options.data, "train", options.limit), load(options.data, "t10k", None)
    hvd.init()
    state = train(data, options)
    hvd.check_parameters(state.params)  # raises an error if the workers' parameters differ
    test_accuracy = accuracy(state.params, test)
    if hvd.rank() == 0:
        print(f"parameters of {hvd.size()} workers are bitwise equal")
        print(f"test accuracy {test_accuracy:.4f} after {state.steps_done} steps")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
