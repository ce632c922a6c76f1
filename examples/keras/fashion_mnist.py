"""Train a small convolutional network on Fashion-MNIST with Keras, with any number of workers.

    farandole run -n 2 python examples/keras/fashion_mnist.py
    KERAS_BACKEND=jax farandole run -n 2 python examples/keras/fashion_mnist.py
    python examples/keras/fashion_mnist.py                     # alone

The lines that contain `hvd` make the training distributed. The program works with each backend of
Keras: tensorflow, torch and jax.
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

import farandole.keras as hvd

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
    # Each worker trains on its own part of the data. All parts have the same number of batches.
    rows = len(images) // (batch_size * hvd.size()) * batch_size
    own_part = slice(hvd.rank(), rows * hvd.size(), hvd.size())
    keras.utils.set_random_seed(options.seed)
    model = make_model()
    # The gradients of all workers are averaged before each step.
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(options.lr, momentum=0.9, nesterov=True)
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    falling = hvd.callbacks.LearningRateScheduleCallback(
        options.lr, lambda epoch: (1 + np.cos(np.pi * epoch / options.epochs)) / 2, staircase=False
    )
    start = time.monotonic()
    model.fit(
        images[own_part],
        classes[own_part],
        batch_size=batch_size,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            falling,
        ],
    )
    return model, time.monotonic() - start


def accuracy(model: Any, data: Arrays) -> float:
    """Return the accuracy over all images. Each worker evaluates a part of them."""
    images, classes = (array[hvd.rank() :: hvd.size()] for array in data)
    predictions = model.predict(images, batch_size=500, verbose=0)
    correct = int((predictions.argmax(1) == classes).sum())
    return float(hvd.allreduce(correct, op=hvd.Sum)) / len(data[0])


def main() -> None:
    options = parse_arguments()
    hvd.init()
    model, seconds = train(load(options.data, "train", options.limit), options)
    hvd.check_parameters(model)  # raises an error if the workers' parameters differ
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
