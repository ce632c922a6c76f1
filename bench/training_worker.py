"""One rank of bench/training.py: train each model in each way, in rounds, and time it.

All ways run in the same processes, one after another, so that a busy minute of the machine affects
all of them. Rank 0 appends a line of JSON to the given file after each round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd

WARM_UP_STEPS = 4
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Model:
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    steps: int  # steps per round


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 3, 28), nn.ReLU(), nn.Linear(28, 10)),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU()),
        *(nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 1000)),
    )


class EmbeddingModel(nn.Module):
    """Average rows of a large table, and feed them to a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100_000, 64)
        self.network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.network(self.table(words))


MODELS = {
    "cnn": Model(
        convolutional,
        lambda: (torch.randn(64, 1, 28, 28), torch.randint(10, (64,))),
        cross_entropy,
        60,
    ),
    "mlp": Model(perceptron, lambda: (torch.randn(32, 1024), torch.randn(32, 1000)), mse_loss, 6),
    "embedding": Model(
        EmbeddingModel,
        lambda: (torch.randint(100_000, (256, 32)), torch.randint(10, (256,))),
        cross_entropy,
        20,
    ),
}

# A way of training: a function that gets a model, and returns the module to call and the optimizer.
Way = Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]


def alone(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def ours(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = alone(model)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())


def ddp(group: Any) -> Way:
    return lambda model: alone(DistributedDataParallel(model, process_group=group))


def ways() -> dict[str, Way]:
    local_ways: dict[str, Way] = {"one process": alone, "independent": alone}
    local_ways |= {"DDP, Gloo": ddp(None), "ours": ours}
    return local_ways | {"DDP, ours": ddp(dist.new_group(backend="farandole"))}


def train(model: Model, way: Way, is_idle: bool) -> tuple[float, float, nn.Module]:
    """Return the seconds per step, the last loss and the trained model.

    If `is_idle`, only wait until the other rank has trained.
    """
    torch.manual_seed(1)
    module = model.build()
    if is_idle:
        hvd.barrier()
        hvd.barrier()
        return 0.0, 0.0, module
    torch.manual_seed(100 + hvd.rank())
    batches = [model.batch() for _ in range(4)]
    forward, optimizer = way(module)
    begin, loss = 0.0, torch.zeros(())
    for step in range(WARM_UP_STEPS + model.steps):
        if step == WARM_UP_STEPS:
            hvd.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        inputs, targets = batches[step % len(batches)]
        loss = model.loss(forward(inputs), targets)
        loss.backward()
        optimizer.step()
    seconds = (time.perf_counter() - begin) / model.steps
    hvd.barrier()
    return seconds, loss.item(), module


def measure(name: str, way_name: str, way: Way) -> dict[str, Any]:
    is_idle = way_name == "one process" and hvd.rank() > 0
    seconds, loss, model = train(MODELS[name], way, is_idle)
    gathered = hvd.allgather_object((seconds, loss))
    trained = [pair for pair in gathered if pair[0] > 0]
    if way_name not in ("one process", "independent"):
        hvd.check_parameters(model.named_parameters())
    return {
        "seconds": sum(pair[0] for pair in trained) / len(trained),
        "loss": sum(pair[1] for pair in trained) / len(trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("rounds", type=int)
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    store = dist.FileStore(f"{arguments.file}.store", hvd.size())
    limit = timedelta(minutes=5)
    dist.init_process_group(
        "gloo", store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=limit
    )
    all_ways = list(ways().items())
    for number in range(arguments.rounds):
        order = all_ways if number % 2 == 0 else all_ways[::-1]
        results = {
            model: {name: measure(model, name, way) for name, way in order}
            for model in arguments.models
        }
        if hvd.rank() == 0:
            with open(arguments.file, "a") as file:
                file.write(json.dumps(results) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
