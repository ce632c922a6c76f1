"""Train two models at the same time: the even ranks train one model, and the odd ranks the other.
In the end, all ranks use both models.

horovodrun -np 2 python examples/horovod/process_sets.py
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import horovod.torch as hvd

STEPS = 200


def target_curve(inputs: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * inputs)


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))


def train(model: nn.Module, process_set: hvd.ProcessSet) -> float:
    """Train on the ranks of the set, each with its own inputs. Return the mean of their last
    losses."""
    generator = torch.Generator().manual_seed(hvd.rank())
    root = process_set.ranks[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), process_set=process_set
    )
    for name, parameter in model.state_dict().items():
        hvd.broadcast_(parameter, root, name=name, process_set=process_set)
    loss = torch.zeros(())
    for _ in range(STEPS):
        inputs = 2 * torch.rand(64, 1, generator=generator) - 1
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), target_curve(inputs))
        loss.backward()
        optimizer.step()
    return hvd.allreduce(loss.detach(), name="loss", process_set=process_set).item()


def check_ranks(process_set: hvd.ProcessSet) -> None:
    """Check that a sum over the process set contains the values of its ranks only."""
    total = hvd.allreduce(
        torch.tensor(hvd.rank()), op=hvd.Sum, name="ranks", process_set=process_set
    )
    if total != sum(process_set.ranks):
        sys.exit(f"the sum over the ranks {process_set.ranks} is {total}")


def main() -> None:
    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        sys.exit("at least two workers are needed")
    # Every rank must add every process set, in the same order.
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    own_set = even if even.included() else odd
    check_ranks(own_set)

    torch.manual_seed(hvd.rank())
    models = {even: network(32), odd: network(64)}
    loss = train(models[own_set], own_set)
    if own_set.rank() == 0:
        print(f"ranks {own_set.ranks} have trained their model to a loss of {loss:.5f}", flush=True)

    # Now all ranks get both models. A rank that has trained a model sends it.
    for number, (process_set, model) in enumerate(models.items()):
        for name, parameter in model.state_dict().items():
            hvd.broadcast_(parameter, process_set.ranks[0], name=f"{number}.{name}")
    inputs = torch.linspace(-1, 1, 101)[:, None]
    with torch.no_grad():
        prediction = torch.stack([model(inputs) for model in models.values()]).mean(0)
    error = (prediction - target_curve(inputs)).abs().max()
    predictions = hvd.allgather(prediction.T, name="answers")
    if not (predictions == prediction.T).all():
        sys.exit("the ranks have different models")
    if hvd.rank() == 0:
        print(f"together the two models are off by at most {error:.4f}")
    hvd.remove_process_set(odd)
    if error > 0.4:
        sys.exit("the models have learned too little")


if __name__ == "__main__":
    main()
