"""Trains with Lightning on two ranks: `lightning_program.py BACKEND FOLDER`."""

from __future__ import annotations

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from task import Task, finish
from torch.utils.data import DataLoader

# Gives the strategy a name, so that configuration files can select it.
StrategyRegistry.register("farandole", DDPStrategy, process_group_backend="farandole")


class Module(LightningModule):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self.loss = task.network, task.loss

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        data, target = batch
        return self.loss(self.network(data), target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    backend, folder = sys.argv[1:]
    task = Task()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="farandole" if backend == "farandole" else DDPStrategy(),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(task), DataLoader(task.data, batch_size=task.batch))
    finish(backend, folder, task)


if __name__ == "__main__":
    main()
