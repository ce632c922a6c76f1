"""One worker of elastic_experiment.py: train a small residual network while workers come and go.

The plan says how many workers each step must have. When this number changes, rank 0 lists that many
hosts, and all workers wait until the job has that many workers. So the results do not depend on how
long a worker takes to start.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import farandole.torch as hvd

PAUSE_S = 0.05  # between two calls of check_host_updates()
LEARNING_RATE_MAX, WARM_UP = 0.005, 0.1
CHANNELS = 16
CURVE_IMAGES = 2000  # test images per point of the accuracy curve
Data = dict[str, torch.Tensor]  # images and classes, for training and for testing


@dataclass(frozen=True)
class Plan:
    sizes: list[int]  # worker counts, each for the same number of steps
    steps: int
    batch_images: int  # images in a batch of all workers together
    steps_between_points: int  # points of the accuracy curve
    seed: int
    data: str  # `data`, `hosts` and `result` are paths of files
    hosts: str
    result: str

    def size_at(self, step: int) -> int:
        return self.sizes[step * len(self.sizes) // self.steps]


def normalized(convolution: nn.Conv2d) -> nn.Module:
    """Normalize each image by itself, so that it does not matter which images a worker has."""
    return nn.Sequential(convolution, nn.GroupNorm(4, convolution.out_channels))


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            normalized(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)),
            nn.ReLU(),
            normalized(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)),
        )
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = normalized(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(images) + self.shortcut(images))


def network() -> nn.Module:
    return nn.Sequential(
        normalized(nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1, bias=False)),
        nn.ReLU(),
        ResidualBlock(CHANNELS, CHANNELS, 1),
        ResidualBlock(CHANNELS, 2 * CHANNELS, 2),
        ResidualBlock(2 * CHANNELS, 4 * CHANNELS, 2),
        *(nn.Flatten(), nn.Linear(4 * CHANNELS * 4 * 4, 10)),
    )


def learning_rate(step: int, steps: int) -> float:
    """Return a learning rate that first rises linearly and then falls as a cosine. The rate depends
    only on the step."""
    rise = min(1.0, (step + 1) / (WARM_UP * steps))
    return LEARNING_RATE_MAX * rise * (1 + math.cos(math.pi * step / steps)) / 2


def list_hosts(path: Path, count: int) -> None:
    """List loopback addresses as hosts with one slot each."""
    new_file = path.with_suffix(".new")
    new_file.write_text("".join(f"127.0.0.{number + 1}:1\n" for number in range(count)))
    new_file.rename(path)  # renaming is atomic: readers never see half a list


def wait_for_members(state: hvd.elastic.TorchState, plan: Plan) -> None:
    """If the job has as many workers as the plan says, return. Otherwise, list the right number of
    hosts, and wait. When the members change, an exception ends this function, and hvd.elastic.run
    handles this exception."""
    wanted_size = plan.size_at(state.step)
    if hvd.size() == wanted_size:
        return
    if hvd.rank() == 0:
        list_hosts(Path(plan.hosts), wanted_size)
    while True:
        state.check_host_updates()
        time.sleep(PAUSE_S)


def train_step(state: hvd.elastic.TorchState, plan: Plan, data: Data) -> None:
    images, classes = data["images"], data["classes"]
    epoch, position = divmod(state.step * plan.batch_images, len(images))
    source = torch.Generator().manual_seed(1000 * plan.seed + epoch)
    batch = torch.randperm(len(images), generator=source)[position : position + plan.batch_images]
    own_indices = batch[hvd.rank() :: hvd.size()]
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(state.step, plan.steps)
    state.optimizer.zero_grad()
    # The workers' parts of the batch may differ in size, so each loss is divided by the size of the
    # whole batch. The sum of these losses is the mean over the whole batch.
    loss = cross_entropy(
        state.model(images[own_indices]), classes[own_indices], reduction="sum"
    ) / len(batch)
    loss.backward()
    state.optimizer.step()
    state.uses += torch.bincount(hvd.allgather(own_indices), minlength=len(images))
    state.sizes.append(hvd.size())
    state.step += 1
    if position + len(batch) == len(images):
        check_uses(state, epoch)


def check_uses(state: hvd.elastic.TorchState, epoch: int) -> None:
    """Check that the workers have used each image once in the epoch."""
    if not (state.uses == 1).all():
        wrong_count = int((state.uses != 1).sum())
        sys.exit(f"{wrong_count} images of epoch {epoch + 1} were not used exactly once")
    state.uses.zero_()
    state.epochs_checked += 1


@torch.no_grad()
def accuracy(model: nn.Module, data: Data, count: int) -> float:
    """Return the accuracy on the first images of the test data; each worker takes a part."""
    images, classes = data["test_images"][:count], data["test_classes"][:count]
    correct = torch.tensor(0)
    for own_indices in torch.arange(hvd.rank(), len(images), hvd.size()).split(500):
        correct += (model(images[own_indices]).argmax(1) == classes[own_indices]).sum()
    return hvd.allreduce(correct, op=hvd.Sum).item() / len(images)


def digest_of_replicas(state: hvd.elastic.TorchState) -> str:
    """Check that all workers have the same bits of the model and of the optimizer's state."""
    digest = hashlib.sha256()
    optimizer_state = state.optimizer.state_dict()["state"]
    moments = [
        tensor
        for parameter_state in optimizer_state.values()
        for tensor in parameter_state.values()
    ]
    for tensor in (*state.model.state_dict().values(), *moments):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    own_digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    if not (hvd.allgather(own_digest[None]) == own_digest).all():
        sys.exit("the replicas differ")
    return digest.hexdigest()[:16]


def train(state: hvd.elastic.TorchState, plan: Plan, data: Data) -> None:
    @hvd.elastic.run
    def train_from(state: hvd.elastic.TorchState) -> None:
        while state.step < plan.steps:
            wait_for_members(state, plan)
            train_step(state, plan, data)
            if state.step % plan.steps_between_points == 0 or state.step == plan.steps:
                state.curve[state.step] = accuracy(state.model, data, CURVE_IMAGES)
            state.commit()

    train_from(state)


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    data: Data = torch.load(plan.data)
    torch.manual_seed(plan.seed)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE_MAX)
    hvd.init()
    names = model.named_parameters()
    state = hvd.elastic.TorchState(
        model,
        hvd.DistributedOptimizer(optimizer, named_parameters=names, op=hvd.Sum),
        step=0,
        uses=torch.zeros(len(data["images"]), dtype=torch.long),  # of each image, in this epoch
        epochs_checked=0,
        sizes=[],  # the number of workers in each step
        curve={},  # accuracy by step
    )
    train(state, plan, data)
    last_accuracy = accuracy(model, data, len(data["test_images"]))
    result = {
        "accuracy": last_accuracy,
        "curve": list(state.curve.items()),
        "sizes": state.sizes,
        "epochs_checked": state.epochs_checked,
        "digest": digest_of_replicas(state),
    }
    if hvd.rank() == 0:
        Path(plan.result).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
