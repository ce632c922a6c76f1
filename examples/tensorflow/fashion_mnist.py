"""Train a small convolutional network on Fashion-MNIST with TensorFlow, with any number of workers.

    farandole run -n 2 python examples/tensorflow/fashion_mnist.py
    python examples/tensorflow/fashion_mnist.py                     # alone

The lines that contain `hvd` make the training distributed. examples/keras/fashion_mnist.py does the
same with fit().
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd

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


def make_model() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def train(data: Arrays, options: argparse.Namespace) -> tuple[Any, float]:
    """Train, and return the model and the seconds that the epochs took."""
    images, classes = data
    batch_size = max(1, options.batch_size // hvd.size())  # per worker
    steps = len(images) // (batch_size * hvd.size())
    keras.utils.set_random_seed(options.seed)
    model = make_model()
    schedule = keras.optimizers.schedules.CosineDecay(options.lr, options.epochs * steps)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # All workers begin with the variables of rank 0.
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    @tf.function
    def step(images: Any, classes: Any) -> Any:
        # The gradients of all workers are averaged.
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(classes, model(images, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    start = time.monotonic()
    for epoch in range(options.epochs):
        # Each worker trains on its own part of the data, in the same random order on all workers.
        order = np.random.default_rng((options.seed, epoch)).permutation(len(images))
        own_part = order[hvd.rank() :: hvd.size()]
        begin, losses = time.monotonic(), []
        for number in range(steps):
            batch = own_part[number * batch_size : (number + 1) * batch_size]
            losses.append(step(tf.constant(images[batch]), tf.constant(classes[batch])))
        mean_loss = float(hvd.allreduce(tf.reduce_mean(losses)))
        if hvd.rank() == 0:
            rate = steps * batch_size * hvd.size() / (time.monotonic() - begin)
            title = f"epoch {epoch + 1}/{options.epochs}"
            print(f"{title}: {rate:,.0f} images/s, loss {mean_loss:.3f}", flush=True)
    return model, time.monotonic() - start


def accuracy(model: Any, data: Arrays) -> float:
    """Return the accuracy over all images. Each worker evaluates a part of them."""
    images, classes = (array[hvd.rank() :: hvd.size()] for array in data)
    predictions = model.predict(images, batch_size=500, verbose=0)
    correct = tf.constant(int((predictions.argmax(1) == classes).sum()))
    return float(hvd.allreduce(correct, op=hvd.Sum)) / len(data[0])


def main() -> None:
    options = parse_arguments()
    hvd.init()
    model, seconds = train(load(options.data, "train", options.limit), options)
    hvd.check_parameters(model.variables)  # raises an error if the workers' variables differ
    found = accuracy(model, load(options.data, "t10k", None))
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
