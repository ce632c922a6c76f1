"""A worker of elastic_state.py: `elastic_state_worker.py MEGABYTES WORKERS`. The worker waits until
the job has WORKERS workers. Whenever it gets the state, it prints the time for the model, and the
time for the whole state including the saved copy."""

from __future__ import annotations

import os
import sys
import time

import torch

import farandole.torch as hvd

WORKERS_AT_START = 2


class TimedModel(hvd.elastic.ModelStateHandler):
    def sync(self) -> None:
        began = time.monotonic()
        super().sync()
        show("model", began)


class TimedState(hvd.elastic.TorchState):
    def sync(self) -> None:
        began = time.monotonic()
        super().sync()
        show("state", began)


def show(what: str, began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{what} on rank {hvd.rank()} of {hvd.size()}: {seconds:.4f} s", flush=True)


def main(megabytes: int, workers: int) -> None:
    # Half of the state belongs to the optimizer. A layer has 4 MiB.
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(megabytes // 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if int(os.environ["FARANDOLE_ELASTIC_WORKER"]) < WORKERS_AT_START:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    hvd.elastic.set_handler_registry(
        [(torch.nn.Module, TimedModel), *hvd.elastic.get_handler_registry()]
    )
    hvd.init()
    state = TimedState(model, optimizer)

    @hvd.elastic.run
    def wait(state: TimedState) -> None:
        while hvd.size() < workers:
            time.sleep(0.05)
            state.check_host_updates()

    wait(state)
    hvd.check_parameters(model.named_parameters())
    print("equal", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
