"""A training that uses process sets. test_elastic_process_sets.py starts it, and kills its workers.

    process_set_worker.py SEED FOLDER [MISTAKE]

The sets have random ranks, also ranks that the job never has. In each step, each worker calls in
each set, in an order of its own, and compares every element of each result with the one that must
be. Whenever the group is formed, it also checks what the sets say about themselves, and adds
another set. If the file `quiet` is in FOLDER, the workers end. With MISTAKE, new workers give
init() other sets.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import farandole
from farandole import calls, core, elastic, lifecycle
from farandole.group import Group, global_process_set
from farandole.handle import Handle, PreparedCall
from farandole.numpy import view_of
from farandole.objects import broadcast_object

NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
SEED, FOLDER = sys.argv[1], Path(sys.argv[2])
WORKERS = int(os.environ["SET_WORKERS"])
COUNT, RANKS, ELEMENTS = 9, WORKERS + 2, 3000


def random_sets() -> list[list[int]]:
    chooser = random.Random(f"sets {SEED}")
    # Some of these are the whole job at times.
    found = {tuple(range(size)) for size in range(1, WORKERS + 1)}
    while len(found) < COUNT:
        found.add(tuple(sorted(chooser.sample(range(RANKS), chooser.randint(1, RANKS - 1)))))
    ranks = [list(one) for one in found]
    chooser.shuffle(ranks)
    return ranks


RANKS_OF = random_sets()
if len(sys.argv) > 3 and NUMBER >= WORKERS:
    RANKS_OF.reverse()
SETS = [Group(ranks) for ranks in RANKS_OF]
former: list[Group] = []  # the set that was added in the last epoch


def values_of(rank: int, ranks: list[int], step: int) -> Any:
    place = [rank, step, lifecycle.engine().epoch, *ranks]
    return np.random.default_rng(place).integers(-(1 << 40), 1 << 40, ELEMENTS)


def start_sum(group: Group, values: Any) -> Handle[Any]:
    answer = np.empty_like(values)
    view = view_of(values, values, answer)
    call = core.allreduce("", group.number(), view, core.reduce_ops["sum"], 1.0, 1.0)

    def finish(engine: core.Engine, number: int) -> Any:
        engine.check_outcome(number)
        return answer

    return calls.start(PreparedCall(call, (values, answer), finish))


def expect_error(text: str, group: Group) -> None:
    try:
        start_sum(group, np.zeros(3))
    except farandole.CallError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"a call in {group} has begun, but the error must be: {text}")


def names_of(ranks: list[int]) -> str:
    """Return a text such as "ranks 0-2, 5"."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    ]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts)}"


def check_sets(sets: list[Group], step: int) -> None:
    """Call in each set of which this worker is a member, and compare all elements."""
    me, size = farandole.rank(), farandole.size()
    mine = [group for group in sets if me in group.ranks and group.ranks[-1] < size]
    random.Random(f"{SEED} {NUMBER} {step}").shuffle(mine)
    started = [start_sum(group, values_of(me, group.ranks, step)) for group in mine]
    for group, handle in zip(mine, started, strict=True):
        wanted = sum(values_of(rank, group.ranks, step) for rank in group.ranks)
        found = handle.wait()
        assert np.array_equal(found, wanted), f"wrong sum in {group} at step {step}"


def check_facts(sets: list[Group]) -> None:
    me, size = farandole.rank(), farandole.size()
    for number, group in enumerate(sets, 1):
        assert group.process_set_id == number, group
        assert group.size() == len(group.ranks)
        assert group.included() == (me in group.ranks)
        if group.included():
            assert group.rank() == group.ranks.index(me)
        if group.ranks[-1] >= size:
            missing = names_of([rank for rank in group.ranks if rank >= size])
            now = "1 rank" if size == 1 else f"{size} ranks"
            expect_error(f"it lacks {missing}, because the job has {now} now", group)
        elif not group.included():
            expect_error("it is not a member", group)


def add_sets() -> list[Group]:
    """Add a set that is new in each epoch, and check that the last one is lost."""
    for group in former:
        assert group.process_set_id is None and group.included() is None
        expect_error("add_process_set() again", group)
    former.clear()
    size, epoch = farandole.size(), lifecycle.engine().epoch
    chooser = random.Random(f"{SEED} {epoch}")
    ranks = sorted(chooser.sample(range(size), chooser.randint(1, size)))
    if ranks in RANKS_OF:
        return []
    former.append(lifecycle.add_process_set(ranks))
    return former


def train(state: elastic.ObjectState) -> None:
    size, place = farandole.size(), f"{farandole.rank()} of {farandole.size()}"
    sets = SETS + add_sets()
    check_facts(sets)
    check_sets(sets, state.step)
    epoch = lifecycle.engine().epoch
    print(f"worker {NUMBER} (pid {os.getpid()}) has epoch {epoch}: rank {place}", flush=True)
    while True:
        check_sets(sets, state.step)
        quiet = start_sum(global_process_set, np.array([(FOLDER / "quiet").exists()], np.int64))
        state.step += 1
        if quiet.wait()[0] == size:
            return
        state.commit()
        time.sleep(0.002)


def reset() -> None:
    """Form the job again, in one of the ways in which programs do."""
    if random.Random(f"{SEED} {NUMBER} {lifecycle.engine().epoch}").random() < 0.5:
        elastic.reset_job()
    else:
        farandole.shutdown()
        farandole.init()


farandole.init(process_sets=SETS)
state = elastic.ObjectState(broadcast_object, lifecycle.rank, step=0)
elastic.run_fn(train, reset)(state)
print(f"worker {NUMBER} (pid {os.getpid()}) ends well", flush=True)
