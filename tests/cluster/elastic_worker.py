"""A training whose result shows whether every batch has counted exactly once.

Each batch has a random number. The state is the sum of the numbers of all batches that have been
processed. The first argument is a seed: it chooses where and how each worker fails. Without a seed,
no worker fails. The second argument is the form of the training:

    function: a function of run_fn(), which makes commits (the default)
    step: a loop with a Step
    jax: a loop with a Step, whose state is a JaxState, and whose calls are compiled

If the variable NEW_WORKERS_FROM is set, the training waits in the middle until a worker with this
number or a higher one is a member. Such a worker joins only when the file that the variable
JOIN_WHEN names exists. In the form `function`, the training also waits until rank 0 finds the file
that the variable HOLD_UNTIL names.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from array import array
from typing import Any

import farandole
from farandole import core, elastic, lifecycle
from farandole.calls import run
from farandole.objects import broadcast_object

BATCHES = 400
MEMBERS_MAX = 8
committed = [0]  # the batches at which this worker has made commits
WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
NEW_WORKERS_FROM = int(os.environ.get("NEW_WORKERS_FROM", "0"))
JOIN_WHEN = os.environ.get("JOIN_WHEN", "/")
HOLD_UNTIL = os.environ.get("HOLD_UNTIL", "/")
FAILURE_POINTS = (
    "before the step",
    "in the step",
    "after the step",
    "after the commit",
    "before the sync",
)
FAILURE_KINDS = ("kill", "error", "exit", "stop")
SEED = sys.argv[1] if len(sys.argv) > 1 else ""
FORM = sys.argv[2] if len(sys.argv) > 2 else "function"
BITS = 22 if FORM == "jax" else 40  # with 22 bits, the sum of all numbers fits into an int32


def value_of(batch: int) -> int:
    return random.Random(batch).getrandbits(BITS)


def allreduce_sum(number: int) -> int:
    values, result = array("q", [number]), array("q", [0])
    addresses = values.buffer_info()[0], result.buffer_info()[0]
    view = core.BufferView(core.dtypes["int64"], (1,), *addresses)
    run(core.allreduce("step", 0, view, core.reduce_ops["sum"], 1.0, 1.0), (values, result))
    return result[0]


class Failure:
    """How this worker fails, and when. Some workers do not fail."""

    def __init__(self, seed: str) -> None:
        generator = random.Random(f"{seed}/{WORKER_NUMBER}")
        self.point = generator.choice(FAILURE_POINTS)
        self.kind = generator.choice(FAILURE_KINDS[: 3 if os.environ.get("NO_STOPS") else 4])
        self.countdown = generator.randrange(1, 60) if generator.random() < 0.7 else -1
        self.pauses = generator

    def inject_if_due(self, point: str, batch: int = 0) -> None:
        if self.pauses.random() < 0.05:
            time.sleep(self.pauses.random() * 0.02)
        # Near the end, no worker may fail: if a worker fails after the last step, the job fails,
        # too.
        if point != self.point or batch + 4 * farandole.size() > BATCHES:
            return
        self.countdown -= 1
        if self.countdown != 0:
            return
        print(f"worker {WORKER_NUMBER} fails {point}: {self.kind}", flush=True)
        if self.kind == "error":
            raise ValueError("a failure of the test")
        if self.kind == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)


def failing_state_type(state_type: Any) -> Any:
    class FailingState(state_type):  # type: ignore[misc]
        def sync(self) -> None:
            failure.inject_if_due("before the sync")
            super().sync()

    return FailingState


def process(state: Any, allreduce: Any) -> None:
    """Process one batch on each worker. The state changes in two parts, so that a failure can come
    between the two changes."""
    failure.inject_if_due("before the step", state.batch)
    size, own_batch = farandole.size(), state.batch + farandole.rank()
    value = value_of(own_batch) if own_batch < BATCHES else 0
    state.total += allreduce(value // 2)
    failure.inject_if_due("in the step", state.batch)
    state.total += allreduce(value - value // 2)
    failure.inject_if_due("after the step", state.batch)
    state.batch += size
    time.sleep(0.01)  # in a real training, the worker computes here
    committed.append(state.batch)


def print_progress(state: Any) -> None:
    progress = f"rank {farandole.rank()} of {farandole.size()} at batch {state.batch}"
    print(f"worker {WORKER_NUMBER} has {progress}", flush=True)
    # The state of rank 0, which all ranks get, may be one step older than the last commit of this
    # worker.
    assert state.batch + MEMBERS_MAX >= committed[-1], "the training has begun again"


def wait_in_the_middle(state: Any) -> None:
    while (
        allreduce_sum(int(WORKER_NUMBER >= NEW_WORKERS_FROM)) == 0
        or allreduce_sum(int(farandole.rank() == 0 and os.path.exists(HOLD_UNTIL))) == 0
    ):
        state.commit()
        time.sleep(0.01)


def train_in_function() -> Any:
    def train(state: Any) -> None:
        print_progress(state)
        while state.batch < BATCHES:
            if state.batch >= BATCHES // 2:
                wait_in_the_middle(state)
            process(state, allreduce_sum)
            state.commit()
            failure.inject_if_due("after the commit", state.batch)

    state = failing_state_type(elastic.ObjectState)(
        broadcast_object, lifecycle.rank, batch=0, total=0
    )
    elastic.run_fn(train, elastic.reset_job)(state)
    return state


def lacks_new_workers(state: Any) -> bool:
    if NEW_WORKERS_FROM == 0 or state.batch < BATCHES // 2:
        return False
    return allreduce_sum(int(WORKER_NUMBER >= NEW_WORKERS_FROM)) == 0


def train_in_steps(state: Any, step: elastic.Step, allreduce: Any) -> Any:
    shown_job = 0
    while step.ready() and state.batch < BATCHES:
        with step:
            failure.inject_if_due("after the commit", state.batch)
            if shown_job != core.job_number():
                shown_job = core.job_number()
                print_progress(state)
            if lacks_new_workers(state):
                time.sleep(0.01)
            else:
                process(state, allreduce)
    return state


def train() -> Any:
    if FORM == "function":
        return train_in_function()
    objects = {"batch": 0, "total": 0}
    if FORM == "step":
        make_state = failing_state_type(elastic.ObjectState)
        state = make_state(broadcast_object, lifecycle.rank, **objects)
        return train_in_steps(state, elastic.Step(state), allreduce_sum)
    jax, hvd = importlib.import_module("jax"), importlib.import_module("farandole.jax")
    allreduce = jax.jit(lambda number: hvd.allreduce(number, op=hvd.Sum))
    state = failing_state_type(hvd.elastic.JaxState)(batch=0, total=jax.numpy.int32(0))
    return train_in_steps(state, hvd.elastic.Step(state), allreduce)


failure = Failure(SEED)
if not SEED:
    failure.countdown = -1
if FORM == "jax":
    importlib.import_module("farandole.jax")  # import before init(), because the import takes long
while WORKER_NUMBER >= NEW_WORKERS_FROM > 0 and not os.path.exists(JOIN_WHEN):
    time.sleep(0.01)
farandole.init()
state = train()
total = sum(map(value_of, range(BATCHES)))
assert int(state.total) == total, "a batch is missing or counts twice"
print(f"worker {WORKER_NUMBER} (pid {os.getpid()}) has the right sum", flush=True)
