"""Train a small convolutional network on Fashion-MNIST, with any number of workers.

    farandole run -n 2 python examples/torch/fashion_mnist.py
    python examples/torch/fashion_mnist.py                     # alone

The lines that contain `hvd` make the training distributed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from tqdm import tqdm

import farandole.torch as hvd


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


def load(folder: Path, part: str, limit: int | None) -> TensorDataset:
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
    images = torch.tensor(arrays[0], dtype=torch.float32).reshape(-1, 1, 28, 28)[:limit]
    classes = torch.tensor(arrays[1], dtype=torch.long)[:limit]
    return TensorDataset((images / 255 - 0.286) / 0.353, classes)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Progress:
    """Show an epoch's progress on rank 0: a bar on a terminal, otherwise one line at the end."""

    def __init__(self, title: str, images: int) -> None:
        self.is_shown, self.has_bar = hvd.rank() == 0, sys.stderr.isatty()
        hidden = not (self.is_shown and self.has_bar)
        self.bar = tqdm(total=images, desc=title, unit=" images", disable=hidden)
        self.title, self.start = title, time.monotonic()
        self.images, self.loss, self.correct = 0, 0.0, 0

    def add(self, loss: torch.Tensor, logits: torch.Tensor, classes: torch.Tensor) -> None:
        self.images += len(classes)
        self.loss += loss.item() * len(classes)
        self.correct += int((logits.argmax(1) == classes).sum())
        self.bar.set_postfix_str(self.text(self.loss, self.correct, self.images), refresh=False)
        self.bar.update(len(classes) * hvd.size())

    def finish(self) -> None:
        # Sum the counts of all workers.
        own_counts = torch.tensor([self.loss, self.correct, self.images], dtype=torch.float64)
        loss, correct, images = hvd.allreduce(own_counts, op=hvd.Sum).tolist()
        seconds = time.monotonic() - self.start
        text = self.text(loss, correct, images)
        self.bar.set_postfix_str(text)
        self.bar.close()
        if self.is_shown and not self.has_bar:
            print(f"{self.title}: {images / seconds:,.0f} images/s, {text}", flush=True)

    @staticmethod
    def text(loss: float, correct: float, images: float) -> str:
        return f"loss {loss / images:.3f}, accuracy {correct / images:.3f}"


def train(model: nn.Module, data: TensorDataset, options: argparse.Namespace) -> float:
    """Train, and return the seconds that the epochs took."""
    # Each worker trains on its own part of the data.
    sampler: DistributedSampler[int] = DistributedSampler(
        data, hvd.size(), hvd.rank(), seed=options.seed
    )
    batches = DataLoader(data, max(1, options.batch_size // hvd.size()), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, nesterov=True)
    # The gradients of all workers are averaged before each step.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # All workers begin with the parameters of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, epochs=options.epochs, steps_per_epoch=len(batches)
    )
    start = time.monotonic()
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        progress = Progress(f"epoch {epoch + 1}/{options.epochs}", len(sampler) * hvd.size())
        for images, classes in batches:
            logits = model(images)
            loss = F.cross_entropy(logits, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.add(loss.detach(), logits, classes)
        progress.finish()
    return time.monotonic() - start


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the accuracy over all images. Each worker evaluates a part of them."""
    own_part = Subset(data, range(hvd.rank(), len(data), hvd.size()))
    correct = torch.tensor(0)
    for images, classes in DataLoader(own_part, batch_size=500):
        correct += (model(images).argmax(1) == classes).sum()
    return hvd.allreduce(correct, op=hvd.Sum).item() / len(data)


def check_equal(model: nn.Module) -> None:
    """Check that all workers have the same parameters, bit by bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    own_digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    digests = hvd.allgather(own_digest[None])
    if not (digests == own_digest).all():
        sys.exit("the parameters of the workers differ")
    if hvd.rank() == 0:
        print(f"parameters of {hvd.size()} workers are bitwise equal ({digest.hexdigest()[:16]})")


def main() -> None:
    options = parse_arguments()
    hvd.init()
    training = load(options.data, "train", options.limit)
    test = load(options.data, "t10k", options.limit)
    torch.manual_seed(options.seed)
    model = network()
    seconds = train(model, training, options)
    test_accuracy = accuracy(model, test)
    check_equal(model)
    if hvd.rank() == 0:
        speed = len(training) * options.epochs / seconds
        print(f"test accuracy {test_accuracy:.4f}")
        print(f"{speed:,.0f} images/s with {hvd.size()} workers, {seconds:.1f} s of training")
    if test_accuracy < options.accuracy_floor:
        sys.exit(f"test accuracy {test_accuracy:.4f} is below {options.accuracy_floor}")


if __name__ == "__main__":
    main()
