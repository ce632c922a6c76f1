"""Training that continues from its last commit after a failure: Horovod's hvd.elastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from farandole.elastic import (
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    StateHandler,
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
    "TorchState",
    "get_handler_registry",
    "init",
    "run",
    "run_fn",
    "set_handler_registry",
    "shutdown",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    Jobs have a fixed size so far. If all processes are still there, they form the job again and
    continue from the last commit. If a process is gone, forming the job again fails, and run()
    raises that error.
    """
    return run_fn(func, reset_job)
