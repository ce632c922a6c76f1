"""Train on Fashion-MNIST so that the training survives a failed call and the loss of a worker. The
training goes on from its last commit, and repeats only the batches after that commit.

    farandole run -n 4 --min-workers 2 python examples/torch/elastic_fashion_mnist.py
    farandole run -n 4 --min-workers 2 python examples/torch/elastic_fashion_mnist.py \
        --kill-at 100 200
    farandole run -n 2 python examples/torch/elastic_fashion_mnist.py --fail-at 30

With --kill-at, worker 1 kills itself before the first given batch, worker 2 before the second, and
so on. With --fail-at, every rank acts once as if a call had failed before the given batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from fashion_mnist import accuracy, check_equal, load, network
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on Fashion-MNIST, with commits.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images per worker and step")
    parser.add_argument("--batches-per-commit", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--limit", type=int, help="use only this many images")
    parser.add_argument("--fail-at", type=int, help="a batch, counted over all epochs")
    parser.add_argument(
        "--kill-at", type=int, nargs="+", default=[], help="a batch for each worker"
    )
    return parser.parse_args()


class Failure:
    """Simulates a failure: raises an error once, as if a call had failed, or kills this worker."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch = options.fail_at
        # The workers are numbered in the order in which they are started.
        number = int(os.environ.get("FARANDOLE_ELASTIC_WORKER", "-1"))
        batches = dict(enumerate(options.kill_at, start=1))
        self.last_batch = batches.get(number)

    def check(self, batch: int) -> None:
        if batch == self.last_batch:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch == self.batch:
            self.batch = None
            raise hvd.GroupLostError("as if a call had failed")


def train(state: hvd.elastic.TorchState, data: TensorDataset, options: argparse.Namespace) -> None:
    failure = Failure(options)

    # hvd.elastic.run gives all ranks the state of rank 0, and then calls the function. After a
    # failed call, hvd.elastic.run restores the last commit, gives this state to all ranks, and
    # calls the function again.
    @hvd.elastic.run
    def train_from(state: hvd.elastic.TorchState) -> None:
        if hvd.rank() == 0:
            done = state.sampler.processed_num
            progress = f"{done} images of epoch {state.epoch + 1} are done"
            print(f"batch {state.batch}: {progress}, {hvd.size()} workers go on")
        while state.epoch < options.epochs:
            for images, classes in DataLoader(data, options.batch_size, sampler=state.sampler):
                failure.check(state.batch)
                state.optimizer.zero_grad()
                F.cross_entropy(state.model(images), classes).backward()
                state.optimizer.step()
                state.sampler.record_batch(state.batch, options.batch_size)
                state.batch += 1
                if state.batch % options.batches_per_commit == 0:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    def adapt_learning_rate() -> None:
        for group in state.optimizer.param_groups:
            group["lr"] = options.lr * hvd.size()

    state.register_reset_callbacks([adapt_learning_rate])
    train_from(state)


def main() -> None:
    options = parse_arguments()
    # Prepare everything before init(). If a new worker did this work after init(), the other
    # workers would have to wait.
    training = load(options.data, "train", options.limit)
    test = load(options.data, "t10k", options.limit)
    torch.manual_seed(1)
    model = network()
    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    state = hvd.elastic.TorchState(
        model,
        hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()),
        sampler=hvd.elastic.ElasticSampler(training),
        epoch=0,
        batch=0,
    )
    train(state, training, options)
    test_accuracy = accuracy(model, test)
    check_equal(model)
    if hvd.rank() == 0:
        print(f"test accuracy {test_accuracy:.4f} after {state.batch} batches")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
