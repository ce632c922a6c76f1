"""Training that continues from its last commit after a failure: Horovod's hvd.elastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from farandole import lifecycle
from farandole.elastic import (
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    StateHandler,
    Step,
    reset_job,
    run_fn,
)
from farandole.lifecycle import init, shutdown
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "Step",
    "TorchState",
    "get_handler_registry",
    "init",
    "run",
    "run_fn",
    "set_handler_registry",
    "shutdown",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def _make_first_optimizer() -> None:
    """Make an optimizer before the job begins: for the first optimizer of a process, PyTorch
    imports its compiler, which takes seconds."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


lifecycle.add_preparation(_make_first_optimizer)


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    In an elastic job (`farandole run --min-workers`), the remaining processes form a new group and
    continue from the last commit; new processes join at a later commit. In a job of fixed size,
    run() raises the error if a process is gone.
    """
    return run_fn(func, reset_job)
