"""Train with DistributedDataParallel over Farandole, on random data.

farandole run -n 2 python ddp.py
torchrun --nproc-per-node 2 ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch  # noqa: F401 - registers the backend

STEPS = 60


def main() -> None:
    dist.init_process_group("farandole")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(rank)  # every rank trains on different data
    for _ in range(STEPS):
        data = torch.randn(64, 8)
        loss = nn.functional.mse_loss(model(data), data.square().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    if rank == 0:
        print(f"loss {mean.item():.1f} after {STEPS} steps with {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
