"""A training with a ledger. Its workers fail at named failpoints. test_elastic_chaos.py starts it.

    chaos_worker.py SEED FIRST_PROTECTED FOLDER [MISTAKE]

Each batch has an entry in the ledger, and must count exactly once. After each step, each worker
compares its whole ledger with the correct one, and its weights with those of all others, bit by
bit.

Before each init(), a worker may get a new fault: a failpoint, an action, and a number n. The action
(kill, stop or pause) happens when the worker passes the failpoint for the n-th time. Some
failpoints are in the engine, which reads FARANDOLE_FAILPOINT; the others are in this program. With
the seed "failpoints", each new worker kills itself at another failpoint.

One worker is always protected, so that the state is never lost. It never kills itself, and the file
`protected.PID` in FOLDER tells the test not to kill it. At first, the worker FIRST_PROTECTED is
protected; later, other workers are. If the file `end` is in FOLDER, the workers get no more faults,
form the group once more, and end. MISTAKE is "ledger" or "weights": a protected worker changes a
value there, and check() must find this.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

import farandole
from farandole import core, elastic, lifecycle
from farandole.calls import start
from farandole.handle import Handle, PreparedCall
from farandole.numpy import view_of
from farandole.objects import broadcast_object

WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
SEED, FIRST_PROTECTED, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
MISTAKE = (sys.argv[4:] or [""])[0]
WORKERS = int(os.environ["CHAOS_WORKERS"])
ENGINE_FAILPOINTS = (
    "engine.stopping",
    "engine.stopped",
    "rank.wanted",
    "rank.asked",
    "rank.given",
    "formation.published",
    "formation.shared",
    "formation.attached",
    "formation.counted",
    "formation.completed",
    "formation.departed",
)
STEP_FAILPOINTS = ("step.begun", "step.submitted", "step.waited", "step.compared", "step.committed")
FAILPOINTS = (*ENGINE_FAILPOINTS, "sync.begun", "sync.done", *STEP_FAILPOINTS)
ACTIONS = ("kill", "kill", "kill", "stop", "pause")
FAULTS_PER_INIT = 0.45
LEDGER_SIZE, WEIGHT_COUNT = 1000, 4096
STEPS_BETWEEN_RESETS = 30
MISTAKE_FROM = 200
FAULTS_FROM = 20  # all first workers have got the state before this step


class Faults:
    """The current fault of this worker, if it has one."""

    def __init__(self) -> None:
        self.init_count = 0
        self.failpoint, self.action, self.countdown = "", "", 0
        self.is_armed = False

    def choose(self) -> None:
        """Choose a fault, or none, for the time between the next init() and the init() after it."""
        generator = random.Random(f"{SEED}/{WORKER_NUMBER}/{self.init_count}")
        self.init_count += 1
        os.environ.pop("FARANDOLE_FAILPOINT", None)
        # If a worker fails before all workers have joined for the first time, the whole job ends.
        is_first = self.init_count == 1 and WORKER_NUMBER < WORKERS
        is_fault_chosen = SEED == "failpoints" or generator.random() < FAULTS_PER_INIT
        self.is_armed = is_fault_chosen and not is_first and not must_end()
        if not self.is_armed:
            return
        self.failpoint = generator.choice(FAILPOINTS)
        self.action = generator.choice(ACTIONS)
        self.countdown = generator.choice(
            (1, 1, 2, 10) if self.failpoint in STEP_FAILPOINTS else (1, 1, 2)
        )
        if SEED == "failpoints":
            self.failpoint, self.action, self.countdown = (
                FAILPOINTS[WORKER_NUMBER % len(FAILPOINTS)],
                "kill",
                1,
            )
        if protection.is_active and self.action == "kill":
            self.action = "pause"
        if self.failpoint in ENGINE_FAILPOINTS:
            os.environ["FARANDOLE_FAILPOINT"] = f"{self.failpoint}:{self.action}:{self.countdown}"

    def pass_failpoint(self, failpoint: str) -> None:
        if not self.is_armed or self.failpoint != failpoint or committed[-1] < FAULTS_FROM:
            return
        self.countdown -= 1
        if self.countdown != 0:
            return
        line = f"process {os.getpid()} is at the failpoint {failpoint}: {self.action}\n"
        os.write(sys.stderr.fileno(), line.encode())
        if self.action == "pause":
            time.sleep(0.1)
        else:
            os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class Protection:
    """Whether this worker is protected from being killed."""

    def __init__(self) -> None:
        self.is_active = False
        self.file = FOLDER / f"protected.{os.getpid()}"

    def begin(self) -> None:
        self.file.touch()
        self.is_active = True

    def begin_or_end(self, protected: np.ndarray) -> None:
        """Begin or end the protection of this worker.

        `protected` has, for each rank, the number of its worker + 1 if this worker was protected in
        the last step, else 0. The newest protected worker stays protected, so that there always is
        one.
        """
        newest_protected = max(protected) - 1
        if self.is_active and newest_protected > WORKER_NUMBER:
            self.is_active = False
            self.file.unlink()
        elif not self.is_active and not faults.is_armed and newest_protected < WORKER_NUMBER:
            self.begin()


def must_end() -> bool:
    return (FOLDER / "end").exists()


def start_sum(values: np.ndarray, name: str) -> Handle[np.ndarray]:
    result = np.empty_like(values)
    view = view_of(values, values, result)
    call = core.allreduce(name, 0, view, core.reduce_ops["sum"], 1.0, 1.0)

    def finish(engine: core.Engine, number: int) -> np.ndarray:
        engine.check_outcome(number)
        return result

    return start(PreparedCall(call, (values, result), finish))


def report_mistake_and_exit(text: str) -> NoReturn:
    """Print what is wrong, write it to a file, and exit. The test looks for this file, because the
    job may go on without this worker."""
    print(f"worker {WORKER_NUMBER}: {text}", file=sys.stderr, flush=True)
    (FOLDER / f"wrong.{WORKER_NUMBER}").write_text(text)
    os._exit(9)


def check(state: TestState) -> None:
    """Compare the ledger with the correct one, and the weights with those of all other ranks."""
    expected = state.batch // LEDGER_SIZE + (np.arange(LEDGER_SIZE) < state.batch % LEDGER_SIZE)
    wrong_entries = np.flatnonzero(state.ledger != expected)
    if wrong_entries.size:
        i = wrong_entries[0]
        report_mistake_and_exit(
            f"the batch {i} counts {state.ledger[i]} times, not {expected[i]}, at {state.batch}"
        )
    bits = np.zeros((farandole.size(), WEIGHT_COUNT + 1), np.int64)
    bits[farandole.rank(), :-1] = state.weights.view(np.int64)
    bits[farandole.rank(), -1] = state.batch
    all_bits = start_sum(bits, "compare").wait()
    differing = np.argwhere(all_bits != bits[farandole.rank()])
    if differing.size:
        rank, i = differing[0]
        report_mistake_and_exit(
            f"the weight {i} of rank {rank} differs from that of rank {farandole.rank()}"
        )


class TestState(elastic.ObjectState):
    def sync(self) -> None:
        faults.pass_failpoint("sync.begun")
        super().sync()
        faults.pass_failpoint("sync.done")


def step(state: TestState) -> tuple[int, int]:
    """Make a step. Return how many workers have found the file `end`, and how many of them have a
    fault."""
    rank, size = farandole.rank(), farandole.size()
    entries = np.zeros(LEDGER_SIZE + 2 + size, np.int32)
    entries[(state.batch + rank) % LEDGER_SIZE] = 1
    entries[LEDGER_SIZE : LEDGER_SIZE + 2] = must_end(), faults.is_armed
    entries[LEDGER_SIZE + 2 + rank] = protection.is_active * (WORKER_NUMBER + 1)
    gradients = np.random.default_rng(state.batch + rank).standard_normal(WEIGHT_COUNT)
    faults.pass_failpoint("step.begun")
    handles = start_sum(entries, "ledger"), start_sum(gradients, "gradients")
    faults.pass_failpoint("step.submitted")
    # The state changes in two places, with a failpoint between them. If the step fails there, the
    # restore must undo the first change.
    entries = handles[0].wait()
    state.ledger += entries[:LEDGER_SIZE]
    faults.pass_failpoint("step.waited")
    state.weights -= handles[1].wait() / size
    state.batch += size
    if MISTAKE and protection.is_active and state.batch > MISTAKE_FROM:
        getattr(state, MISTAKE)[7] += 1
    check(state)
    faults.pass_failpoint("step.compared")
    protection.begin_or_end(entries[LEDGER_SIZE + 2 :])
    return int(entries[LEDGER_SIZE]), int(entries[LEDGER_SIZE + 1])


def train(state: TestState) -> None:
    size = farandole.size()
    # The state of rank 0, which all ranks get, may be one step older than the last commit of this
    # worker.
    if state.batch + WORKERS < committed[-1]:
        report_mistake_and_exit(
            f"the training has begun again at {state.batch} after {committed[-1]}"
        )
    steps = 0
    while True:
        ending_workers, workers_with_fault = step(state)
        state.commit()
        committed.append(state.batch)
        faults.pass_failpoint("step.committed")
        if state.batch // 100 != (state.batch - size) // 100:
            print(
                f"worker {WORKER_NUMBER} (pid {os.getpid()}) is at batch {state.batch}", flush=True
            )
        steps += 1
        if ending_workers == size and workers_with_fault == 0:
            return
        if ending_workers == size or steps == STEPS_BETWEEN_RESETS:
            raise elastic.HostsUpdatedInterrupt
        time.sleep(0.002)


def reset() -> None:
    lifecycle.shutdown()
    faults.choose()
    farandole.init()


committed = [0]
protection = Protection()
if WORKER_NUMBER == FIRST_PROTECTED:
    protection.begin()
faults = Faults()
faults.choose()
farandole.init()
if WORKER_NUMBER >= WORKERS:
    committed = [FAULTS_FROM]
state = TestState(
    broadcast_object,
    lifecycle.rank,
    batch=0,
    ledger=np.zeros(LEDGER_SIZE, np.int32),
    weights=np.zeros(WEIGHT_COUNT),
)
elastic.run_fn(train, reset)(state)
print(
    f"worker {WORKER_NUMBER} (pid {os.getpid()}) has the right ledger at {state.batch}", flush=True
)
