"""Functions that tests call on several workers.

The functions are not in the test files, because the test files import all frameworks, and the
workers must not import them."""

from __future__ import annotations

import os
import time
from typing import Any

import horovod.torch


def describe_worker(number: int) -> tuple[int, int, str | None]:
    horovod.torch.init()
    return horovod.torch.rank(), number, os.environ.get("HOROVOD_CONTROLLER")


def train_after_a_loss(number_of_hosts: int) -> tuple[int, int]:
    """Train until worker 1 is lost and the job has workers on all hosts."""
    hvd = horovod.torch
    hvd.init()
    state = hvd.elastic.TorchState(batch=0, losses=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        if state.batch > 0:
            state.losses += 1
        while state.losses == 0 or hvd.size() != number_of_hosts:
            hvd.barrier()
            state.batch += 1
            if os.environ["FARANDOLE_ELASTIC_WORKER"] == "1":
                os._exit(5)
            state.commit()
            time.sleep(0.01)

    train(state)
    return hvd.rank(), hvd.size()


def raise_key_error() -> None:
    raise KeyError("no such image")
