"""Train with Adasum, which averages updates of the same direction and adds orthogonal updates.

horovodrun -np 2 python examples/horovod/adasum.py
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import horovod.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with Adasum.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=32, help="points per worker and step")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def check_operation() -> None:
    equal_vector = torch.arange(1.0, 9.0)
    if not torch.allclose(hvd.allreduce(equal_vector, op=hvd.Adasum, name="same"), equal_vector):
        sys.exit("Adasum of equal vectors must be that vector")
    own = torch.zeros(hvd.size())
    own[hvd.rank()] = 1.0 + hvd.rank()
    sum_of_own = hvd.allreduce(own, op=hvd.Adasum, name="own")
    if not torch.allclose(sum_of_own, torch.arange(1.0, 1.0 + hvd.size())):
        sys.exit("Adasum of orthogonal vectors must be their sum")
    if hvd.rank() == 0:
        print("equal vectors are averaged, orthogonal ones are added", flush=True)


def spirals(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of a spiral with three arms, and the arm of each point."""
    arms = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + arms * (2 * math.pi / 3)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arms


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    check_operation()
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    # With Adasum, the learning rate stays the same for any number of workers.
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(arguments.steps):
        points, arms = spirals(arguments.batch_size, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(points), arms).backward()
        optimizer.step()
    points, arms = spirals(1000, torch.Generator().manual_seed(99))
    with torch.no_grad():
        accuracy = (model(points).argmax(1) == arms).float().mean().item()
    gathered = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
    if any(parameters != gathered[0] for parameters in gathered):
        sys.exit("the parameters of the workers differ")
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.3f} after {arguments.steps} steps of {hvd.size()} workers")
    if accuracy < 0.85:
        sys.exit("too little was learned")


if __name__ == "__main__":
    main()
