"""Trains with Accelerate on two ranks: `accelerate_program.py BACKEND FOLDER`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from task import Task, finish
from torch.utils.data import DataLoader


def main() -> None:
    backend, folder = sys.argv[1:]
    if backend == "farandole":  # for CPUs, Accelerate would choose only Gloo or MPI
        dist.init_process_group("farandole")
    accelerator = Accelerator(cpu=True)
    task = Task()
    optimizer = torch.optim.Adam(task.network.parameters(), lr=0.01)
    batches = DataLoader(task.data, batch_size=task.batch)
    network, optimizer, batches = accelerator.prepare(task.network, optimizer, batches)
    for _ in range(2):
        for data, target in batches:
            optimizer.zero_grad()
            accelerator.backward(task.loss(network(data), target))
            accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
    finish(backend, folder, task)


if __name__ == "__main__":
    main()
