"""A rank that runs the Python blocks of the pages: `page_program.py FOLDER`.

Many blocks are parts of programs. `names()` defines the names that they use, but do not define.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from page_blocks import ROOT, Block, all_blocks
from torch import nn

import farandole
import farandole.torch as hvd


def train_some_steps() -> None:
    for step in range(3):
        hvd.allreduce(torch.ones(4), name=f"value {step}")


def names() -> dict[str, Any]:
    hvd.init()
    torch.manual_seed(1)
    model, generator, discriminator = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 1)

    def distributed(module: nn.Module) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        return hvd.DistributedOptimizer(optimizer, named_parameters=module.named_parameters())

    torch.manual_seed(2 + hvd.rank())
    return {
        "__name__": "__main__",
        "farandole": farandole,
        "hvd": hvd,
        "torch": torch,
        "model": model,
        "optimizer": distributed(model),
        "loss_function": nn.functional.mse_loss,
        "loss": model(torch.randn(8, 4)).square().mean(),
        "scaler": torch.amp.GradScaler("cpu"),
        "batches": [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(2)],
        "inputs": torch.randn(8, 4),
        "targets": torch.randn(8, 1),
        "epoch": 1,
        "epochs": 2,
        "generator": generator,
        "discriminator": discriminator,
        "g_optimizer": distributed(generator),
        "d_optimizer": distributed(discriminator),
        "noise": torch.randn(8, 4),
        "real": torch.randn(8, 4),
        "train_some_steps": train_some_steps,
    }


def run(block: Block) -> None:
    # The empty lines make the line numbers in tracebacks equal to those in the page.
    code = compile("\n" * (block.line - 1) + block.code, ROOT / block.page, "exec")
    exec(code, names())
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"{block.place} has run", flush=True)


def main() -> None:
    os.chdir(sys.argv[1])
    # Dynamo traces as always, and no C++ compiler runs.
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    for block in all_blocks():
        if block.language == "python" and block.is_run_here:
            run(block)


if __name__ == "__main__":
    main()
