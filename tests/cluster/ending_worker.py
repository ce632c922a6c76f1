"""A training whose launcher or driver is killed. test_elastic_ends.py starts it.

    ending_worker.py FOLDER FORM [BEHAVIOR]

The state has weights and a ledger, in which each batch must count exactly once. If the launcher is
lost, each worker writes its state to the file `checkpoint.NUMBER` in FOLDER. All these files must
be equal. FORM is the form of the training:

    function: a function of run_fn(), which makes commits
    step: a loop with a Step
    torch: a function of hvd.elastic.run, whose state is a TorchState

With BEHAVIOR, workers also do one of the following:

    prints: the workers write 100 kB after each step, and also in their end callbacks
    hangs: worker 1 hangs in a step, in a C function that keeps the GIL
    sleeps: worker 1 sleeps in a step
    dies: worker 1 waits in a step until it learns that the job ends, and kills itself
    hangs at the end: worker 1 hangs in its end callback
    no commits: no worker makes a commit
    no callbacks: there are no end callbacks
    fails at the end: the end callback of worker 1 raises an error
    waits to join: worker 1 does not call init() before it finds the file `join` in FOLDER
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import farandole
from farandole import core, elastic, lifecycle
from farandole.calls import run
from farandole.objects import broadcast_object

FOLDER, FORM = Path(sys.argv[1]), sys.argv[2]
BEHAVIOR = (sys.argv[3:] or [""])[0]
WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.01"))
LEDGER_SIZE, WEIGHT_COUNT = 64, 1024
HANGS_FROM = 20  # steps


def allreduce_sum(numbers: list[int]) -> list[int]:
    values, result = array("q", numbers), array("q", [0] * len(numbers))
    addresses = values.buffer_info()[0], result.buffer_info()[0]
    view = core.BufferView(core.dtypes["int64"], (len(numbers),), *addresses)
    run(core.allreduce("step", 0, view, core.reduce_ops["sum"], 1.0, 1.0), (values, result))
    return result.tolist()


def hang() -> None:
    ctypes.PyDLL(None).sleep(1000)  # keeps the GIL


def print_much() -> None:
    print("o" * 100_000, flush=True)
    print("e" * 100_000, file=sys.stderr, flush=True)


def process(state: Any) -> None:
    """Process one batch on each worker, and count it."""
    rank, size = farandole.rank(), farandole.size()
    if WORKER_NUMBER == 1 and state.steps == HANGS_FROM:
        if BEHAVIOR == "hangs":
            print("worker 1 hangs", flush=True)
            hang()
        if BEHAVIOR == "sleeps":
            print("worker 1 sleeps", flush=True)
            time.sleep(1000)
        if BEHAVIOR == "dies":
            print("worker 1 dies", flush=True)
            while not lifecycle.announced_end(1):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
    entries = [0] * LEDGER_SIZE
    entries[(state.batch + rank) % LEDGER_SIZE] = 1
    entries = allreduce_sum(entries)
    state.ledger = [sum(pair) for pair in zip(state.ledger, entries, strict=True)]
    time.sleep(STEP_SECONDS)
    state.weights = allreduce_sum([weight + rank for weight in state.weights])
    state.weights = [weight % 1_000_003 for weight in state.weights]
    state.batch += size
    state.steps += 1
    check(state)
    (FOLDER / f"trains.{WORKER_NUMBER}").touch()
    if BEHAVIOR == "prints":
        print_much()
    if state.steps % 10 == 0:
        print(f"worker {WORKER_NUMBER} (pid {os.getpid()}) is at batch {state.batch}", flush=True)


def check(state: Any) -> None:
    expected = [
        state.batch // LEDGER_SIZE + (i < state.batch % LEDGER_SIZE) for i in range(LEDGER_SIZE)
    ]
    if state.ledger != expected:
        (FOLDER / f"wrong.{WORKER_NUMBER}").write_text(f"{state.batch}: {state.ledger}")
        os._exit(9)


def save(state: Any) -> None:
    if BEHAVIOR == "prints":
        print_much()
    sizes = allreduce_sum([1, state.batch])  # end callbacks can still make calls
    if sizes != [farandole.size(), farandole.size() * state.batch]:
        (FOLDER / f"wrong.{WORKER_NUMBER}").write_text(f"the ranks save different steps: {sizes}")
    if WORKER_NUMBER == 1 and BEHAVIOR == "hangs at the end":
        hang()
    if WORKER_NUMBER == 1 and BEHAVIOR == "fails at the end":
        raise OSError("no space left")
    values = (state.batch, state.ledger, state.weights)
    if FORM == "torch":
        values += (bytes(state.model.weight.detach().numpy().tobytes()),)
    (new := FOLDER / f"new.{WORKER_NUMBER}").write_bytes(pickle.dumps(values))
    new.rename(FOLDER / f"checkpoint.{WORKER_NUMBER}")


def new_state() -> Any:
    values: dict[str, Any] = {"batch": 0, "steps": 0}
    values |= {"ledger": [0] * LEDGER_SIZE, "weights": list(range(WEIGHT_COUNT))}
    if FORM == "torch":
        torch, hvd = importlib.import_module("torch"), importlib.import_module("farandole.torch")
        state = hvd.elastic.TorchState(torch.nn.Linear(8, 8), **values)
    else:
        state = elastic.ObjectState(broadcast_object, lifecycle.rank, **values)
    if BEHAVIOR != "no callbacks":
        state.register_end_callbacks([lambda: save(state)])
    return state


def train_torch_model(state: Any) -> None:
    torch, hvd = importlib.import_module("torch"), importlib.import_module("farandole.torch")
    loss = state.model(torch.full((1, 8), 1.0 + farandole.rank())).square().sum()
    state.model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.sub_(0.001 * hvd.allreduce(parameter.grad))


def train(state: Any) -> None:
    while True:
        if FORM == "torch":
            train_torch_model(state)
        process(state)
        if BEHAVIOR != "no commits":
            state.commit()


def train_in_steps(state: Any) -> None:
    step = elastic.Step(state)
    while step.ready():
        with step:
            process(state)


if FORM == "torch":
    importlib.import_module("farandole.torch")
if BEHAVIOR == "waits to join" and WORKER_NUMBER == 1:
    print(f"worker 1 (pid {os.getpid()}) waits", flush=True)
    while not (FOLDER / "join").exists():
        time.sleep(0.01)
print(f"worker {WORKER_NUMBER} comes to init()", flush=True)
farandole.init()
if FORM == "step":
    train_in_steps(new_state())
elif FORM == "torch":
    importlib.import_module("farandole.torch").elastic.run(train)(new_state())
else:
    elastic.run_fn(train, elastic.reset_job)(new_state())
