"""Starts its own ranks, which find each other only through a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import farandole.torch  # noqa: F401 - registers the backend

SIZE = 3


def work(rank: int, path: str) -> None:
    dist.init_process_group("farandole", init_method=path, rank=rank, world_size=SIZE)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    print(f"the sum is {tensor.item()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (Path(folder, "store").as_uri(),), nprocs=SIZE)
