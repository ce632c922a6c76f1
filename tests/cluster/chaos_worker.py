"""A training with a ledger, whose workers fail at named places. test_elastic_chaos.py starts it.

    chaos_worker.py SEED SHELTERED FOLDER [MISTAKE]

Each batch has an entry in the ledger, and must count exactly once. After each step, each worker
compares its whole ledger with the correct one, and its weights with those of all others, bit by
bit.

Before each init(), a worker may get a new fault: a place, an action, and a number n. The action
happens when the worker passes the place for the n-th time. The engine has some of the places
(FARANDOLE_FAILPOINT), this program the others. Some worker is always sheltered: it never dies, so
the state is never lost. At first this is the worker SHELTERED. Later, others take turns. The file
`sheltered.PID` in FOLDER tells the test which worker it must not kill. With the seed "places", each
new worker dies at the next place. If the file `quiet` is in FOLDER, the workers get no more faults,
form the group once more, and end. MISTAKE is "ledger" or "weights": a sheltered worker makes a
mistake there, which must be found.
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

NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
SEED, SHELTERED, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
MISTAKE = (sys.argv[4:] or [""])[0]
WORKERS = int(os.environ["CHAOS_WORKERS"])
ENGINE_PLACES = (
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
STEP_PLACES = ("step.begun", "step.submitted", "step.waited", "step.compared", "step.committed")
PLACES = (*ENGINE_PLACES, "sync.begun", "sync.done", *STEP_PLACES)
ACTIONS = ("kill", "kill", "kill", "stop", "pause")
FAULTS_PER_INIT = 0.45
LEDGER, WEIGHTS = 1000, 4096
STEPS_BETWEEN_RESETS = 30
MISTAKE_FROM = 200
FAULTS_FROM = 20  # from this batch on, all first workers have the state


class Faults:
    """The fault that this worker has at the moment. There may be none."""

    def __init__(self) -> None:
        self.init_count = 0
        self.place, self.action, self.countdown = "", "", 0
        self.is_armed = False

    def choose(self) -> None:
        """Choose the fault for the next init(), and for the time until the init() after it."""
        chooser = random.Random(f"{SEED}/{NUMBER}/{self.init_count}")
        self.init_count += 1
        os.environ.pop("FARANDOLE_FAILPOINT", None)
        # A worker that fails before all have joined the job for the first time ends it.
        is_first = self.init_count == 1 and NUMBER < WORKERS
        wants_fault = SEED == "places" or chooser.random() < FAULTS_PER_INIT
        self.is_armed = wants_fault and not is_first and not is_quiet()
        if not self.is_armed:
            return
        self.place = chooser.choice(PLACES)
        self.action = chooser.choice(ACTIONS)
        self.countdown = chooser.choice((1, 1, 2, 10) if self.place in STEP_PLACES else (1, 1, 2))
        if SEED == "places":
            self.place, self.action, self.countdown = PLACES[NUMBER % len(PLACES)], "kill", 1
        if shelter.is_here and self.action == "kill":
            self.action = "pause"
        if self.place in ENGINE_PLACES:
            os.environ["FARANDOLE_FAILPOINT"] = f"{self.place}:{self.action}:{self.countdown}"

    def pass_place(self, place: str) -> None:
        if not self.is_armed or self.place != place or committed[-1] < FAULTS_FROM:
            return
        self.countdown -= 1
        if self.countdown != 0:
            return
        line = f"process {os.getpid()} is at the failpoint {place}: {self.action}\n"
        os.write(sys.stderr.fileno(), line.encode())
        if self.action == "pause":
            time.sleep(0.1)
        else:
            os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class Shelter:
    """Whether this worker is sheltered."""

    def __init__(self) -> None:
        self.is_here = False
        self.file = FOLDER / f"sheltered.{os.getpid()}"

    def take(self) -> None:
        self.file.touch()
        self.is_here = True

    def take_turns(self, sheltered: np.ndarray) -> None:
        """Begin or end this worker's shelter. `sheltered` has the numbers, from 1, of the workers
        that were sheltered in the last step of all workers. The newest of them stays sheltered, so
        that there always is one."""
        newest = max(sheltered) - 1
        if self.is_here and newest > NUMBER:
            self.is_here = False
            self.file.unlink()
        elif not self.is_here and not faults.is_armed and newest < NUMBER:
            self.take()


def is_quiet() -> bool:
    return (FOLDER / "quiet").exists()


def start_sum(values: np.ndarray, name: str) -> Handle[np.ndarray]:
    answer = np.empty_like(values)
    view = view_of(values, values, answer)
    call = core.allreduce(name, 0, view, core.reduce_ops["sum"], 1.0, 1.0)

    def finish(engine: core.Engine, number: int) -> np.ndarray:
        engine.check_outcome(number)
        return answer

    return start(PreparedCall(call, (values, answer), finish))


def give_up(what: str) -> NoReturn:
    """Say what is wrong, and end. The test reads the file, because the job may go on."""
    print(f"worker {NUMBER}: {what}", file=sys.stderr, flush=True)
    (FOLDER / f"wrong.{NUMBER}").write_text(what)
    os._exit(9)


def check(state: TestState) -> None:
    """Compare the ledger with the one that must be, and the weights with those of all ranks."""
    counts = state.batch // LEDGER + (np.arange(LEDGER) < state.batch % LEDGER)
    wrong = np.flatnonzero(state.ledger != counts)
    if wrong.size:
        i = wrong[0]
        give_up(f"the batch {i} counts {state.ledger[i]} times, not {counts[i]}, at {state.batch}")
    bits = np.zeros((farandole.size(), WEIGHTS + 1), np.int64)
    bits[farandole.rank(), :-1] = state.weights.view(np.int64)
    bits[farandole.rank(), -1] = state.batch
    all_bits = start_sum(bits, "compare").wait()
    differing = np.argwhere(all_bits != bits[farandole.rank()])
    if differing.size:
        rank, i = differing[0]
        give_up(f"the weight {i} of rank {rank} differs from that of rank {farandole.rank()}")


class TestState(elastic.ObjectState):
    def sync(self) -> None:
        faults.pass_place("sync.begun")
        super().sync()
        faults.pass_place("sync.done")


def step(state: TestState) -> tuple[int, int]:
    """Return how many workers have seen that it is quiet, and how many have a fault."""
    me, size = farandole.rank(), farandole.size()
    entries = np.zeros(LEDGER + 2 + size, np.int32)
    entries[(state.batch + me) % LEDGER] = 1
    entries[LEDGER : LEDGER + 2] = is_quiet(), faults.is_armed
    entries[LEDGER + 2 + me] = shelter.is_here * (NUMBER + 1)
    gradients = np.random.default_rng(state.batch + me).standard_normal(WEIGHTS)
    faults.pass_place("step.begun")
    handles = start_sum(entries, "ledger"), start_sum(gradients, "gradients")
    faults.pass_place("step.submitted")
    # The state changes in two places, with a fault between them, which a restore must undo.
    entries = handles[0].wait()
    state.ledger += entries[:LEDGER]
    faults.pass_place("step.waited")
    state.weights -= handles[1].wait() / size
    state.batch += size
    if MISTAKE and shelter.is_here and state.batch > MISTAKE_FROM:
        getattr(state, MISTAKE)[7] += 1
    check(state)
    faults.pass_place("step.compared")
    shelter.take_turns(entries[LEDGER + 2 :])
    return int(entries[LEDGER]), int(entries[LEDGER + 1])


def train(state: TestState) -> None:
    size = farandole.size()
    # Rank 0 may be one step behind.
    if state.batch + WORKERS < committed[-1]:
        give_up(f"the training has begun again at {state.batch} after {committed[-1]}")
    steps = 0
    while True:
        quiet, armed = step(state)
        state.commit()
        committed.append(state.batch)
        faults.pass_place("step.committed")
        if state.batch // 100 != (state.batch - size) // 100:
            print(f"worker {NUMBER} (pid {os.getpid()}) is at batch {state.batch}", flush=True)
        steps += 1
        if quiet == size and armed == 0:
            return
        if quiet == size or steps == STEPS_BETWEEN_RESETS:
            raise elastic.HostsUpdatedInterrupt
        time.sleep(0.002)


def reset() -> None:
    lifecycle.shutdown()
    faults.choose()
    farandole.init()


committed = [0]
shelter = Shelter()
if NUMBER == SHELTERED:
    shelter.take()
faults = Faults()
faults.choose()
farandole.init()
if NUMBER >= WORKERS:
    committed = [FAULTS_FROM]
state = TestState(
    broadcast_object,
    lifecycle.rank,
    batch=0,
    ledger=np.zeros(LEDGER, np.int32),
    weights=np.zeros(WEIGHTS),
)
elastic.run_fn(train, reset)(state)
print(f"worker {NUMBER} (pid {os.getpid()}) has the right ledger at {state.batch}", flush=True)
