"""Train on Fashion-MNIST. Every worker trains on its part of the data. The learning rate begins
with its value for one worker. During the warm-up epochs it rises to N times that value, where N is
the number of workers.

horovodrun -np 2 python examples/horovod/fashion_mnist.py
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on Fashion-MNIST.")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--test-batch-size", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--base-lr", type=float, default=0.02, help="the learning rate with one worker"
    )
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--limit", type=int, default=4000, help="use only this many images")
    parser.add_argument(
        "--accuracy-floor", type=float, default=0.6, help="fail if the accuracy is lower"
    )
    parser.add_argument("--data-dir", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    return parser.parse_args()


def load(folder: Path, part: str, limit: int) -> TensorDataset:
    def read(kind: str, header: int) -> np.ndarray:
        path = folder / f"{part}-{kind}-ubyte.gz"
        if not path.exists():
            sys.exit(f"{path} is missing: `apt-get install dataset-fashion-mnist`, or --data-dir")
        return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)

    images = torch.tensor(read("images-idx3", 16)).reshape(-1, 1, 28, 28)[:limit]
    classes = torch.tensor(read("labels-idx1", 8)).long()[:limit]
    return TensorDataset((images / 255 - 0.286) / 0.353, classes)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5)
        self.conv2 = nn.Conv2d(8, 16, 5)
        self.fc1 = nn.Linear(256, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(F.max_pool2d(self.conv1(images), 2))
        hidden = F.relu(F.max_pool2d(self.conv2(hidden), 2))
        logits: torch.Tensor = self.fc2(F.relu(self.fc1(hidden.flatten(1))))
        return logits


def metric_average(value: float, name: str) -> float:
    return hvd.allreduce(torch.tensor(value), name=name).item()


def adjust_learning_rate(
    optimizer: torch.optim.Optimizer, arguments: argparse.Namespace, progress: float
) -> None:
    """Set the learning rate for this point of the training. `progress` is in epochs."""
    share = min(1.0, progress / arguments.warmup_epochs) if arguments.warmup_epochs else 1.0
    for group in optimizer.param_groups:
        group["lr"] = arguments.base_lr * (1 + share * (hvd.size() - 1))


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    losses, correct = [], []
    for images, classes in loader:
        logits = model(images)
        losses.append(F.cross_entropy(logits, classes))
        correct.append((logits.argmax(1) == classes).float().mean())
    loss = metric_average(torch.stack(losses).mean().item(), "avg_loss")
    accuracy = metric_average(torch.stack(correct).mean().item(), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: average loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    return accuracy


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed)
    train_data = load(arguments.data_dir, "train", arguments.limit)
    test_data = load(arguments.data_dir, "t10k", arguments.limit)
    sampler: DistributedSampler[int] = DistributedSampler(
        train_data, num_replicas=hvd.size(), rank=hvd.rank()
    )
    train_loader = DataLoader(train_data, batch_size=arguments.batch_size, sampler=sampler)
    test_sampler: DistributedSampler[int] = DistributedSampler(
        test_data, num_replicas=hvd.size(), rank=hvd.rank()
    )
    test_loader = DataLoader(test_data, arguments.test_batch_size, sampler=test_sampler)

    model = Net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.base_lr, momentum=arguments.momentum
    )
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    accuracy = 0.0
    for epoch in range(arguments.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for batch, (images, classes) in enumerate(train_loader):
            adjust_learning_rate(optimizer, arguments, epoch + batch / len(train_loader))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
            if hvd.rank() == 0 and batch % 50 == 0:
                rate = optimizer.param_groups[0]["lr"]
                print(
                    f"Train epoch {epoch}, batch {batch}/{len(train_loader)}: "
                    f"loss {loss.item():.4f}, learning rate {rate:.4f}",
                    flush=True,
                )
        accuracy = test(model, test_loader)
    if accuracy < arguments.accuracy_floor:
        sys.exit(f"the accuracy {accuracy:.4f} is below {arguments.accuracy_floor}")


if __name__ == "__main__":
    main()
