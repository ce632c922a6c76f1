"""The trainings of test_known_bugs.py. The first argument is the name of a function.

Each of them checks its results element by element, and its last line says so.
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

NUMBER = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
HOLD_UNTIL = Path(os.environ.get("HOLD_UNTIL", "/"))


def say(text: str) -> None:
    os.write(1, f"worker {NUMBER} (pid {os.getpid()}) {text}\n".encode())  # one line in one write


def allreduce(values: np.ndarray, name: str, group: int = 0) -> np.ndarray:
    answer = np.empty_like(values)
    view = view_of(values, values, answer)
    call = core.allreduce(name, group, view, core.reduce_ops["sum"], 1.0, 1.0)
    run_call(call, (values, answer))
    return answer


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
        wanted = np.arange(len(entries)) < self.batch
        assert np.array_equal(self.counts, wanted), (self.batch, self.counts)

    def train_until_told(self, before: Callable[[], None] = lambda: None) -> None:
        """Use all batches, and go on with empty steps until rank 0 finds the file HOLD_UNTIL."""
        while True:
            before()
            if self.batch < len(self.counts):
                self.train()
            must_end = allreduce(
                np.array([farandole.rank() == 0 and HOLD_UNTIL.exists()], np.int32), "end"
            )
            self.commit()
            if must_end[0] and self.batch >= len(self.counts):
                return
            time.sleep(0.002)


def calls_in_a_thread() -> None:
    """A second thread makes calls all the time, also while the job is left and formed again."""
    state = Ledger(300)
    answers: list[np.ndarray] = []
    errors: list[Exception] = []
    may_end = threading.Event()

    def make_calls() -> None:
        while not may_end.is_set():
            mine = np.zeros(16, np.int32)
            mine[NUMBER] = 1
            try:
                answers.append(allreduce(mine, "thread"))
            except farandole.FarandoleError as error:
                errors.append(error)
                time.sleep(0.0001)  # so that the list does not become long

    thread = threading.Thread(target=make_calls)

    def train(state: Ledger) -> None:
        say(f"is one of {farandole.size()}")
        if not thread.is_alive():
            thread.start()
        state.train_until_told()

    farandole.init()
    elastic.run_fn(train, elastic.reset_job)(state)
    farandole.shutdown()  # while the thread goes on
    may_end.set()
    thread.join()
    for answer in answers:  # the workers of one group
        assert set(answer) <= {0, 1} and answer[NUMBER] == 1 and answer.sum() <= 4, answer
    assert answers
    say(f"has the right counts; {len(errors)} calls of its thread have failed")


def calls_in_process_sets() -> None:
    """Rank 1 has a process set of its own, and dies while the others make calls in theirs."""
    state = Ledger(90)
    old: list[farandole.ProcessSet] = []
    sizes = []

    def train(state: Ledger) -> None:
        rank, size = farandole.rank(), farandole.size()
        sizes.append(size)
        say(f"is one of {size}")
        for group in old:  # of the job before
            try:
                allreduce(np.ones(4, np.int32), "old", group.number())
            except farandole.CallError as error:
                assert "add_process_set()" in str(error), error
            else:
                raise AssertionError(f"{group} is still there")
        groups = [[1], [other for other in range(size) if other != 1]]
        old[:] = [farandole.add_process_set(ranks) for ranks in groups if max(ranks) < size]
        mine = next(group for group in old if group.included())

        def call_in_my_set() -> None:
            if sizes == [3] and rank == 1 and state.batch == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = allreduce(np.arange(1000) * (rank + 1), "mine", mine.number())
            wanted = np.arange(1000) * sum(member + 1 for member in mine.ranks)
            assert np.array_equal(answer, wanted), (mine, answer)

        state.train_until_told(call_in_my_set)

    farandole.init()
    elastic.run_fn(train, elastic.reset_job)(state)
    say(f"has the right counts, and was one of {sizes} workers")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
