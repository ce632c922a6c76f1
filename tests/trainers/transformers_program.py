"""Trains with Transformers' Trainer on two ranks: `transformers_program.py BACKEND FOLDER`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from task import Task, finish
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self.loss = task.network, task.loss

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.network(data)
        return {"loss": self.loss(output, labels), "logits": output}


def main() -> None:
    backend, folder = sys.argv[1:]
    if backend == "farandole":  # for CPUs, the Trainer would choose only Gloo or MPI
        dist.init_process_group("farandole")
    task = Task()
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=task.batch,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    samples = [{"data": data, "labels": target} for data, target in task.data]
    Trainer(model=Model(task), args=arguments, train_dataset=samples).train()
    finish(backend, folder, task)


if __name__ == "__main__":
    main()
