"""A training whose launcher or driver is killed. test_elastic_ends.py starts it.

    ending_worker.py FOLDER FORM [HABIT]

The state has a ledger, in which each batch must count exactly once, and weights. If the launcher is
lost, each worker writes its state to the file `checkpoint.NUMBER` in FOLDER. All files must be
equal. FORM is the form of the training:

    function: a function of run_fn(), which makes commits
    step: a loop with a Step
    torch: a function of hvd.elastic.run, whose state is a TorchState

HABIT is what the workers do besides:

    prints: they write 100 kB after each step, and in the end callbacks
    hangs: worker 1 hangs in a step, in a C function that keeps the GIL
    sleeps: worker 1 sleeps in a step
    dies: worker 1 waits in a step until it hears that the job ends, and kills itself
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
HABIT = (sys.argv[3:] or [""])[0]
NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.01"))
LEDGER, WEIGHTS = 64, 1024
HANGS_FROM = 20  # steps


def allreduce_sum(numbers: list[int]) -> list[int]:
    given, answer = array("q", numbers), array("q", [0] * len(numbers))
    addresses = given.buffer_info()[0], answer.buffer_info()[0]
    view = core.BufferView(core.dtypes["int64"], (len(numbers),), *addresses)
    run(core.allreduce("step", 0, view, core.reduce_ops["sum"], 1.0, 1.0), (given, answer))
    return answer.tolist()


def hang() -> None:
    ctypes.PyDLL(None).sleep(1000)  # keeps the GIL


def print_much() -> None:
    print("o" * 100_000, flush=True)
    print("e" * 100_000, file=sys.stderr, flush=True)


def process(state: Any) -> None:
    """Process one batch on each worker, and count it."""
    me, size = farandole.rank(), farandole.size()
    if NUMBER == 1 and state.steps == HANGS_FROM:
        if HABIT == "hangs":
            print("worker 1 hangs", flush=True)
            hang()
        if HABIT == "sleeps":
            print("worker 1 sleeps", flush=True)
            time.sleep(1000)
        if HABIT == "dies":
            print("worker 1 dies", flush=True)
            while not lifecycle.announced_end(1):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
    entries = [0] * LEDGER
    entries[(state.batch + me) % LEDGER] = 1
    entries = allreduce_sum(entries)
    state.ledger = [sum(pair) for pair in zip(state.ledger, entries, strict=True)]
    time.sleep(STEP_SECONDS)
    state.weights = allreduce_sum([weight + me for weight in state.weights])
    state.weights = [weight % 1_000_003 for weight in state.weights]
    state.batch += size
    state.steps += 1
    check(state)
    (FOLDER / f"trains.{NUMBER}").touch()
    if HABIT == "prints":
        print_much()
    if state.steps % 10 == 0:
        print(f"worker {NUMBER} (pid {os.getpid()}) is at batch {state.batch}", flush=True)


def check(state: Any) -> None:
    wanted = [state.batch // LEDGER + (i < state.batch % LEDGER) for i in range(LEDGER)]
    if state.ledger != wanted:
        (FOLDER / f"wrong.{NUMBER}").write_text(f"{state.batch}: {state.ledger}")
        os._exit(9)


def save(state: Any) -> None:
    if HABIT == "prints":
        print_much()
    sizes = allreduce_sum([1, state.batch])  # the ranks can make calls
    if sizes != [farandole.size(), farandole.size() * state.batch]:
        (FOLDER / f"wrong.{NUMBER}").write_text(f"the ranks save different steps: {sizes}")
    if NUMBER == 1 and HABIT == "hangs at the end":
        hang()
    if NUMBER == 1 and HABIT == "fails at the end":
        raise OSError("no space left")
    values = (state.batch, state.ledger, state.weights)
    if FORM == "torch":
        values += (bytes(state.model.weight.detach().numpy().tobytes()),)
    (new := FOLDER / f"new.{NUMBER}").write_bytes(pickle.dumps(values))
    new.rename(FOLDER / f"checkpoint.{NUMBER}")


def new_state() -> Any:
    values: dict[str, Any] = {"batch": 0, "steps": 0}
    values |= {"ledger": [0] * LEDGER, "weights": list(range(WEIGHTS))}
    if FORM == "torch":
        torch, hvd = importlib.import_module("torch"), importlib.import_module("farandole.torch")
        state = hvd.elastic.TorchState(torch.nn.Linear(8, 8), **values)
    else:
        state = elastic.ObjectState(broadcast_object, lifecycle.rank, **values)
    if HABIT != "no callbacks":
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
        if HABIT != "no commits":
            state.commit()


def train_in_steps(state: Any) -> None:
    step = elastic.Step(state)
    while step.ready():
        with step:
            process(state)


if FORM == "torch":
    importlib.import_module("farandole.torch")
if HABIT == "waits to join" and NUMBER == 1:
    print(f"worker 1 (pid {os.getpid()}) waits", flush=True)
    while not (FOLDER / "join").exists():
        time.sleep(0.01)
print(f"worker {NUMBER} comes to init()", flush=True)
farandole.init()
if FORM == "step":
    train_in_steps(new_state())
elif FORM == "torch":
    importlib.import_module("farandole.torch").elastic.run(train)(new_state())
else:
    elastic.run_fn(train, elastic.reset_job)(new_state())
