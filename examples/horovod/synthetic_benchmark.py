"""Measure how many images per second a convolutional network trains, on random data.

horovodrun -np 2 python examples/horovod/synthetic_benchmark.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import horovod.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the speed of training.")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--num-warmup-batches", type=int, default=4)
    parser.add_argument("--num-batches-per-iter", type=int, default=4)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine by Adasum")
    return parser.parse_args()


class Block(nn.Module):
    """Two convolutions whose input is added to their output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(images)))
        return F.relu(images + self.second_norm(self.second(inner)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        Block(32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        Block(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 1000),
    )


def log(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def check_equal(model: nn.Module) -> None:
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = hvd.allgather(own[None], name="check")
    if not (gathered == own).all():
        sys.exit("the parameters of the workers differ")
    log(f"Parameters of {hvd.size()} worker(s) are equal")


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(arguments.batch_size, 3, 32, 32)
    classes = torch.randint(1000, (arguments.batch_size,))

    def train(batches: int) -> float:
        """Return the images per second on this worker."""
        start = time.perf_counter()
        for _ in range(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images), classes).backward()
            optimizer.step()
        trained: int = batches * arguments.batch_size
        return trained / (time.perf_counter() - start)

    log(f"Batch size: {arguments.batch_size}")
    log(f"Number of workers: {hvd.size()}")
    train(arguments.num_warmup_batches)
    speeds = []
    for number in range(arguments.num_iters):
        speeds.append(train(arguments.num_batches_per_iter))
        log(f"Iter #{number}: {speeds[-1]:.1f} img/sec per worker")
    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} worker(s): {hvd.size() * mean:.1f}")
    check_equal(model)


if __name__ == "__main__":
    main()
