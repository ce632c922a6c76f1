"""One rank of strangers.py: allreduce calls and training steps, until the file END exists.

The steps run in cycles, and all cycles are equal. So all cycles must have the same results, bit by
bit. After the first cycles, rank 0 creates the file WARM. At the end, it writes the times of its
steps to the file TIMES.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import farandole.torch as hvd

ALLREDUCE_COUNT = (1 << 20) // 4
CYCLE_STEPS = 50
WARM_UP_CYCLES = 5
BATCH = 32


class Work:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        )
        self.initial = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())
        torch.manual_seed(100 + hvd.rank())
        self.own = torch.randn(ALLREDUCE_COUNT)
        self.inputs = torch.randn(CYCLE_STEPS, BATCH, 64)
        self.labels = torch.randint(10, (CYCLE_STEPS, BATCH))
        self.times: dict[str, list[tuple[float, float]]] = {}  # begin and seconds of each step

    def timed(self, name: str, action: Callable[[], None]) -> None:
        begin = time.monotonic()
        action()
        self.times.setdefault(name, []).append((begin, time.monotonic() - begin))

    def train(self, step: int) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.inputs[step]), self.labels[step]).backward()
        self.optimizer.step()

    def cycle(self) -> str:
        """Run the steps of a cycle, and return a digest of all their results."""
        digest = hashlib.sha256()
        self.model.load_state_dict(self.initial)
        for step in range(CYCLE_STEPS):
            tensor = self.own * (step + 1)
            self.timed("allreduce of 1 MiB", partial(reduce, tensor))
            digest.update(tensor.numpy())
            self.timed("training step", partial(self.train, step))
        for value in self.model.state_dict().values():
            digest.update(value.numpy())
        return digest.hexdigest()


def reduce(tensor: torch.Tensor) -> None:
    hvd.allreduce_(tensor, op=hvd.Sum, name="1 MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("warm", "end", "times"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    hvd.init()
    work, cycles, first = Work(), 0, ""
    while hvd.broadcast_object(arguments.end.exists(), 0) is False:
        digest = work.cycle()
        first = first or digest
        if digest != first:
            raise SystemExit(f"rank {hvd.rank()}: cycle {cycles} has other results than cycle 0")
        cycles += 1
        if cycles == WARM_UP_CYCLES and hvd.rank() == 0:
            arguments.warm.touch()
    digests = hvd.allgather_object(first)
    if hvd.rank() == 0:
        content = {"cycles": cycles, "equal": len(set(digests)) == 1, "times": work.times}
        arguments.times.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
