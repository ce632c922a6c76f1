"""A training whose result shows whether every batch has counted exactly once.

Each batch has a random number. The state is the sum of the numbers of all batches that have been
processed. The argument is a seed: it chooses where and how each worker fails. Without an argument,
no worker fails. The training waits in the middle until a worker with the number
NEW_WORKERS_FROM or a higher one is a member, and until rank 0 finds the file HOLD_UNTIL, if these
variables are set.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from array import array

import farandole
from farandole import core, elastic, lifecycle
from farandole.calls import run
from farandole.objects import broadcast_object

BATCHES = 400
MEMBERS_MAX = 8
committed = [0]  # the batches at which this worker has made commits
NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
NEW_WORKERS_FROM = int(os.environ.get("NEW_WORKERS_FROM", "0"))
HOLD_UNTIL = os.environ.get("HOLD_UNTIL", "/")
PLACES = ("before the step", "after the step", "after the commit", "before the sync")
WAYS = ("kill", "error", "exit", "stop")


def value_of(batch: int) -> int:
    return random.Random(batch).getrandbits(40)


def allreduce_sum(number: int) -> int:
    given, answer = array("q", [number]), array("q", [0])
    addresses = given.buffer_info()[0], answer.buffer_info()[0]
    view = core.BufferView(core.dtypes["int64"], (1,), *addresses)
    run(core.allreduce("step", 0, view, core.reduce_ops["sum"], 1.0, 1.0), (given, answer))
    return answer[0]


class Failure:
    """How this worker fails, and when. Some workers do not fail."""

    def __init__(self, seed: str) -> None:
        choose = random.Random(f"{seed}/{NUMBER}")
        self.place = choose.choice(PLACES)
        self.way = choose.choice(WAYS[: 3 if os.environ.get("NO_STOPS") else 4])
        self.countdown = choose.randrange(1, 60) if choose.random() < 0.7 else -1
        self.pauses = choose

    def may_come(self, place: str, batch: int = 0) -> None:
        if self.pauses.random() < 0.05:
            time.sleep(self.pauses.random() * 0.02)
        # A job whose worker fails after the last step fails, too.
        if place != self.place or batch + 4 * farandole.size() > BATCHES:
            return
        self.countdown -= 1
        if self.countdown != 0:
            return
        print(f"worker {NUMBER} fails {place}: {self.way}", flush=True)
        if self.way == "error":
            raise ValueError("a failure of the test")
        if self.way == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL if self.way == "kill" else signal.SIGSTOP)


class TestState(elastic.ObjectState):
    def sync(self) -> None:
        failure.may_come("before the sync")
        super().sync()


def wait_in_the_middle(state: TestState) -> None:
    while (
        allreduce_sum(int(NUMBER >= NEW_WORKERS_FROM)) == 0
        or allreduce_sum(int(farandole.rank() == 0 and os.path.exists(HOLD_UNTIL))) == 0
    ):
        state.commit()
        time.sleep(0.01)


def train(state: TestState) -> None:
    me, size = farandole.rank(), farandole.size()
    print(f"worker {NUMBER} has rank {me} of {size} at batch {state.batch}", flush=True)
    # Rank 0 may be one step behind.
    assert state.batch + MEMBERS_MAX >= committed[-1], "the training has begun again"
    while state.batch < BATCHES:
        if state.batch >= BATCHES // 2:
            wait_in_the_middle(state)
        failure.may_come("before the step", state.batch)
        mine = state.batch + me
        total = allreduce_sum(value_of(mine) if mine < BATCHES else 0)
        failure.may_come("after the step", state.batch)
        state.total += total
        state.batch += size
        time.sleep(0.01)  # a step of a real training takes longer than an allreduce
        committed.append(state.batch)
        state.commit()
        failure.may_come("after the commit", state.batch)


failure = Failure(sys.argv[1] if len(sys.argv) > 1 else "")
if len(sys.argv) == 1:
    failure.countdown = -1
farandole.init()
state = TestState(broadcast_object, lifecycle.rank, batch=0, total=0)
elastic.run_fn(train, elastic.reset_job)(state)
assert state.total == sum(map(value_of, range(BATCHES))), "a batch is missing or counts twice"
print(f"worker {NUMBER} (pid {os.getpid()}) has the right sum", flush=True)
