"""Train a small convolutional network on Fashion-MNIST with JAX, with any number of workers.

    farandole run -n 2 python examples/jax/fashion_mnist.py
    python examples/jax/fashion_mnist.py                     # alone

The lines that contain `hvd` make the training distributed.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # images, classes


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--batch-size", type=int, default=128, help="images per step, all workers together"
    )
    parser.add_argument("--lr", type=float, default=0.1, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--limit", type=int, help="use only this many images")
    parser.add_argument(
        "--accuracy-floor", type=float, default=0.0, help="fail if the accuracy is lower"
    )
    return parser.parse_args()


def load(folder: Path, part: str, limit: int | None) -> Arrays:
    """Load the part "train" or "t10k" of the data set: images as numbers around 0, and classes."""
    arrays = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = folder / f"{part}-{kind}-ubyte.gz"
        if not path.exists():
            sys.exit(
                f"{path} is missing: install it by `./dev setup` or `apt-get install "
                "dataset-fashion-mnist`, or give its folder by --data"
            )
        arrays.append(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header))
    images = arrays[0].reshape(-1, 28, 28, 1)[:limit].astype(np.float32)
    return (images / 255 - 0.286) / 0.353, arrays[1][:limit].astype(np.int32)


def initial_parameters(seed: int) -> Any:
    shapes = {
        "conv1": (3, 3, 1, 16),
        "conv2": (3, 3, 16, 32),
        "dense1": (7 * 7 * 32, 128),
        "dense2": (128, 10),
    }
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    initialize = jax.nn.initializers.he_normal()
    return {
        name: {"kernel": initialize(key, shape), "bias": jnp.zeros(shape[-1])}
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def logits_of(params: Any, images: jax.Array) -> jax.Array:
    x = images
    for name in ("conv1", "conv2"):
        layer = params[name]
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"], (1, 1), "SAME", dimension_numbers=numbers
        )
        x = jax.nn.relu(x + layer["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense1"]["kernel"] + params["dense1"]["bias"])
    return x @ params["dense2"]["kernel"] + params["dense2"]["bias"]


def loss_of(params: Any, images: jax.Array, classes: jax.Array) -> jax.Array:
    logits = logits_of(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, classes).mean()


def train(data: Arrays, options: argparse.Namespace) -> tuple[Any, float]:
    """Train, and return the parameters and the seconds that the epochs took."""
    images, classes = data
    batch_size = max(1, options.batch_size // hvd.size())  # per worker
    steps = len(images) // (batch_size * hvd.size())
    # All workers begin with the parameters of rank 0.
    params = hvd.broadcast_parameters(initial_parameters(options.seed), root_rank=0)
    schedule = optax.cosine_onecycle_schedule(options.epochs * steps, options.lr)
    # The gradients of all workers are averaged before each step.
    optimizer = hvd.DistributedOptimizer(optax.sgd(schedule, momentum=0.9, nesterov=True))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, classes: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, classes)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    start = time.monotonic()
    for epoch in range(options.epochs):
        # Each worker trains on its own part of the data, in the same random order on all workers.
        order = np.random.default_rng((options.seed, epoch)).permutation(len(images))
        own_part = order[hvd.rank() :: hvd.size()]
        begin, losses = time.monotonic(), []
        for number in range(steps):
            batch = own_part[number * batch_size : (number + 1) * batch_size]
            params, state, loss = step(params, state, images[batch], classes[batch])
            losses.append(loss)
        mean_loss = float(hvd.allreduce(jnp.stack(losses).mean()))
        if hvd.rank() == 0:
            rate = steps * batch_size * hvd.size() / (time.monotonic() - begin)
            title = f"epoch {epoch + 1}/{options.epochs}"
            print(f"{title}: {rate:,.0f} images/s, loss {mean_loss:.3f}", flush=True)
    return params, time.monotonic() - start


def accuracy(params: Any, data: Arrays) -> float:
    """Return the accuracy over all images. Each worker evaluates a part of them."""
    images, classes = (array[hvd.rank() :: hvd.size()] for array in data)
    logits = jax.jit(logits_of)
    correct = 0
    for begin in range(0, len(images), 500):
        part = slice(begin, begin + 500)
        correct += int((logits(params, images[part]).argmax(1) == classes[part]).sum())
    return float(hvd.allreduce(jnp.int32(correct), op=hvd.Sum)) / len(data[0])


def main() -> None:
    options = parse_arguments()
    hvd.init()
    params, seconds = train(load(options.data, "train", options.limit), options)
    hvd.check_parameters(params)  # raises an error if the workers' parameters differ
    found = accuracy(params, load(options.data, "t10k", None))
    if hvd.rank() == 0:
        print(f"parameters of {hvd.size()} workers are bitwise equal")
        print(f"test accuracy {found:.4f}")
        images = options.epochs * (options.limit or 60_000)
        rate = f"{images / seconds:,.0f} images/s with {hvd.size()} workers"
        print(f"{rate}, {seconds:.1f} s of training")
    if found < options.accuracy_floor:
        sys.exit(f"the accuracy {found:.4f} is lower than {options.accuracy_floor}")


if __name__ == "__main__":
    main()
