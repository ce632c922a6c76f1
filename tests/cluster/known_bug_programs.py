"""The trainings of test_known_bugs.py. The first argument is the name of a function.

Each of them checks its results element by element. If all are right, its last line says so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import farandole
from farandole import core, elastic, lifecycle
from farandole.calls import run as run_call
from farandole.numpy import view_of
from farandole.objects import broadcast_object

WORKER_NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
HOLD_UNTIL = Path(os.environ.get("HOLD_UNTIL", "/"))


def print_line(text: str) -> None:
    # Other processes write to the same pipe, so write the line by one call.
    os.write(1, f"worker {WORKER_NUMBER} (pid {os.getpid()}) {text}\n".encode())


def allreduce(values: np.ndarray, name: str, group: int = 0) -> np.ndarray:
    result = np.empty_like(values)
    view = view_of(values, values, result)
    call = core.allreduce(name, group, view, core.reduce_ops["sum"], 1.0, 1.0)
    run_call(call, (values, result))
    return result


class Ledger(elastic.ObjectState):
    """Counts how often each batch was used."""

    def __init__(self, batches: int) -> None:
        counts = np.zeros(batches, np.int32)
        super().__init__(broadcast_object, lifecycle.rank, batch=0, counts=counts)

    def train(self) -> None:
        """Use one batch on each rank, and check the counts of all batches."""
        entries = np.zeros_like(self.counts)
        if self.batch + farandole.rank() < len(entries):
            entries[self.batch + farandole.rank()] = 1
        self.counts += allreduce(entries, "ledger")
        self.batch += farandole.size()
        expected = np.arange(len(entries)) < self.batch
        assert np.array_equal(self.counts, expected), (self.batch, self.counts)

    def train_until_told(self, before_step: Callable[[], None] = lambda: None) -> None:
        """Train with all batches. Then make steps without a batch, until rank 0 finds the file
        whose path is in the variable HOLD_UNTIL."""
        while True:
            before_step()
            if self.batch < len(self.counts):
                self.train()
            end_flag = allreduce(
                np.array([farandole.rank() == 0 and HOLD_UNTIL.exists()], np.int32), "end"
            )
            self.commit()
            if end_flag[0] and self.batch >= len(self.counts):
                return
            time.sleep(0.002)


def calls_in_a_thread() -> None:
    """A second thread makes calls all the time, even while the main thread leaves the job and joins
    it again."""
    state = Ledger(300)
    answers: list[np.ndarray] = []
    errors: list[Exception] = []
    may_end = threading.Event()

    def make_calls() -> None:
        while not may_end.is_set():
            own_entry = np.zeros(16, np.int32)
            own_entry[WORKER_NUMBER] = 1
            try:
                answers.append(allreduce(own_entry, "thread"))
            except farandole.FarandoleError as error:
                errors.append(error)
                time.sleep(0.0001)  # so that the list does not become long

    thread = threading.Thread(target=make_calls)

    def train(state: Ledger) -> None:
        print_line(f"is one of {farandole.size()}")
        if not thread.is_alive():
            thread.start()
        state.train_until_told()

    farandole.init()
    elastic.run_fn(train, elastic.reset_job)(state)
    farandole.shutdown()  # leave while the thread still makes calls
    may_end.set()
    thread.join()
    for result in answers:  # each answer counts the workers of one group
        assert set(result) <= {0, 1} and result[WORKER_NUMBER] == 1 and result.sum() <= 4, result
    assert answers
    print_line(f"has the right counts; {len(errors)} calls of its thread have failed")


def calls_in_process_sets() -> None:
    """One process set contains only rank 1, and another one contains the other ranks. Rank 1 dies
    while all ranks make calls in these sets."""
    state = Ledger(90)
    old_sets: list[farandole.ProcessSet] = []
    sizes = []

    def train(state: Ledger) -> None:
        rank, size = farandole.rank(), farandole.size()
        sizes.append(size)
        print_line(f"is one of {size}")
        for group in old_sets:  # these process sets were lost with the earlier group
            try:
                allreduce(np.ones(4, np.int32), "old", group.number())
            except farandole.CallError as error:
                assert "add_process_set()" in str(error), error
            else:
                raise AssertionError(f"{group} is still there")
        groups = [[1], [other for other in range(size) if other != 1]]
        old_sets[:] = [farandole.add_process_set(ranks) for ranks in groups if max(ranks) < size]
        own_set = next(group for group in old_sets if group.included())

        def call_in_my_set() -> None:
            if sizes == [3] and rank == 1 and state.batch == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            result = allreduce(np.arange(1000) * (rank + 1), "mine", own_set.number())
            expected = np.arange(1000) * sum(member + 1 for member in own_set.ranks)
            assert np.array_equal(result, expected), (own_set, result)

        state.train_until_told(call_in_my_set)

    farandole.init()
    elastic.run_fn(train, elastic.reset_job)(state)
    print_line(f"has the right counts, and was one of {sizes} workers")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
