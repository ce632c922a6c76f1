"""Errors of PyTorch optimizers, for error_texts.py. Each case is a call that must fail, with the
whole text of its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import farandole.torch as hvd


def cases() -> Iterator[tuple[Callable[[], object], str]]:
    torch.manual_seed(3)
    layer = torch.nn.Linear(2, 1)
    wrapped_optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer: Any = hvd.DistributedOptimizer(wrapped_optimizer, layer.named_parameters())
    layer(torch.ones(2)).backward()
    optimizer.step()
    optimizer.zero_grad()
    frozen = layer.weight if hvd.rank() == 0 else layer.bias
    frozen.requires_grad_(False)
    yield (
        layer(torch.ones(2)).backward,
        "the ranks have frozen different parameters, or have dropped different gradients of frozen "
        "parameters: `bias` (torch.float32 [1] on cpu) differs, which is number 0 of 2 in "
        "gradients.4.0 (bias and 1 more). All ranks must freeze the same parameters, and drop the "
        "same gradients",
    )
    frozen.requires_grad_(True)
    optimizer.zero_grad()
    optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.ones(3)))
    optimizer.param_groups[0]["params"][-1].sum().backward()
    layer(torch.ones(2)).backward()
    yield (
        optimizer.step,
        "the optimizer has 1 parameters, of shape (3,), that the program has put into param_groups "
        "itself, so their gradients are not combined: add them by optimizer.add_param_group(), or "
        "make a new DistributedOptimizer",
    )
    optimizer.zero_grad()
