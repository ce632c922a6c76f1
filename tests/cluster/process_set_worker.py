"""A training that uses process sets. test_elastic_process_sets.py starts it, and kills its workers.

    process_set_worker.py SEED FOLDER [MISTAKE]

The sets contain random ranks, even ranks that the job never has. In each step, each worker makes a
call in each set of which it is a member, in its own order, and checks every element of each result.
After each change of the job, the worker also checks the properties of the sets, and adds another
set. If the file `end` is in FOLDER, the workers end. With MISTAKE, new workers call init() with
other sets, which must fail.
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

WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
SEED, FOLDER = sys.argv[1], Path(sys.argv[2])
WORKERS = int(os.environ["SET_WORKERS"])
SET_COUNT, RANKS, ELEMENTS = 9, WORKERS + 2, 3000


def random_sets() -> list[list[int]]:
    generator = random.Random(f"sets {SEED}")
    # For each size that the job may have, one of these sets is equal to the world.
    rank_sets = {tuple(range(size)) for size in range(1, WORKERS + 1)}
    while len(rank_sets) < SET_COUNT:
        rank_sets.add(
            tuple(sorted(generator.sample(range(RANKS), generator.randint(1, RANKS - 1))))
        )
    rank_lists = [list(rank_set) for rank_set in rank_sets]
    generator.shuffle(rank_lists)
    return rank_lists


SET_RANKS = random_sets()
if len(sys.argv) > 3 and WORKER_NUMBER >= WORKERS:
    SET_RANKS.reverse()
SETS = [Group(ranks) for ranks in SET_RANKS]
epoch_sets: list[Group] = []  # the set that this worker added in the last epoch


def values_of(rank: int, ranks: list[int], step: int) -> Any:
    seed = [rank, step, lifecycle.engine().epoch, *ranks]
    return np.random.default_rng(seed).integers(-(1 << 40), 1 << 40, ELEMENTS)


def start_sum(group: Group, values: Any) -> Handle[Any]:
    result = np.empty_like(values)
    view = view_of(values, values, result)
    call = core.allreduce("", group.number(), view, core.reduce_ops["sum"], 1.0, 1.0)

    def finish(engine: core.Engine, number: int) -> Any:
        engine.check_outcome(number)
        return result

    return calls.start(PreparedCall(call, (values, result), finish))


def expect_error(text: str, group: Group) -> None:
    try:
        start_sum(group, np.zeros(3))
    except farandole.CallError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"a call in {group} has begun, but the error must be: {text}")


def text_of_ranks(ranks: list[int]) -> str:
    """Return a text such as "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in runs
    ]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts)}"


def check_sets(sets: list[Group], step: int) -> None:
    """Make a call in each set of which this worker is a member, and check all elements."""
    own_rank, size = farandole.rank(), farandole.size()
    own_sets = [group for group in sets if own_rank in group.ranks and group.ranks[-1] < size]
    random.Random(f"{SEED} {WORKER_NUMBER} {step}").shuffle(own_sets)
    started = [start_sum(group, values_of(own_rank, group.ranks, step)) for group in own_sets]
    for group, handle in zip(own_sets, started, strict=True):
        expected = sum(values_of(rank, group.ranks, step) for rank in group.ranks)
        actual = handle.wait()
        assert np.array_equal(actual, expected), f"wrong sum in {group} at step {step}"


def check_properties(sets: list[Group]) -> None:
    own_rank, size = farandole.rank(), farandole.size()
    for number, group in enumerate(sets, 1):
        assert group.process_set_id == number, group
        assert group.size() == len(group.ranks)
        assert group.included() == (own_rank in group.ranks)
        if group.included():
            assert group.rank() == group.ranks.index(own_rank)
        if group.ranks[-1] >= size:
            missing = text_of_ranks([rank for rank in group.ranks if rank >= size])
            job_size = "1 rank" if size == 1 else f"{size} ranks"
            expect_error(f"it lacks {missing}, because the job has {job_size} now", group)
        elif not group.included():
            expect_error("it is not a member", group)


def add_sets() -> list[Group]:
    """Add another set in each epoch. Check that the set of the last epoch is lost."""
    for group in epoch_sets:
        assert group.process_set_id is None and group.included() is None
        expect_error("add_process_set() again", group)
    epoch_sets.clear()
    size, epoch = farandole.size(), lifecycle.engine().epoch
    generator = random.Random(f"{SEED} {epoch}")
    ranks = sorted(generator.sample(range(size), generator.randint(1, size)))
    if ranks in SET_RANKS:
        return []
    epoch_sets.append(lifecycle.add_process_set(ranks))
    return epoch_sets


def train(state: elastic.ObjectState) -> None:
    size, rank_text = farandole.size(), f"{farandole.rank()} of {farandole.size()}"
    sets = SETS + add_sets()
    check_properties(sets)
    check_sets(sets, state.step)
    epoch = lifecycle.engine().epoch
    print(
        f"worker {WORKER_NUMBER} (pid {os.getpid()}) has epoch {epoch}: rank {rank_text}",
        flush=True,
    )
    while True:
        check_sets(sets, state.step)
        end_flag = start_sum(global_process_set, np.array([(FOLDER / "end").exists()], np.int64))
        state.step += 1
        if end_flag.wait()[0] == size:
            return
        state.commit()
        time.sleep(0.002)


def reset() -> None:
    """Join the job again in one of the two ways that programs use."""
    if random.Random(f"{SEED} {WORKER_NUMBER} {lifecycle.engine().epoch}").random() < 0.5:
        elastic.reset_job()
    else:
        farandole.shutdown()
        farandole.init()


farandole.init(process_sets=SETS)
state = elastic.ObjectState(broadcast_object, lifecycle.rank, step=0)
elastic.run_fn(train, reset)(state)
print(f"worker {WORKER_NUMBER} (pid {os.getpid()}) ends well", flush=True)
