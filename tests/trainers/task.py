"""The model that the programs of this folder train, and the files with the trained parameters."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset


class Task:
    """A small regression problem, which is the same on every rank."""

    batch = 4

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.loss = nn.MSELoss()
        data = torch.randn(40, 8)
        self.data = TensorDataset(data, data.square().sum(dim=1, keepdim=True))


def finish(backend: str, folder: str, task: Task) -> None:
    """Write the parameters of this rank, and leave the group."""
    assert (dist.get_backend(), dist.get_world_size()) == (backend, 2)
    parameters = [parameter.detach() for parameter in task.network.parameters()]
    torch.save(parameters, Path(folder, f"{backend}.{dist.get_rank()}"))
    dist.barrier()
    dist.destroy_process_group()
