"""Functions that a program runs as elastic jobs: each new worker gets the function, and the results
are those of the last group."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import HANG_SECONDS

import farandole
from farandole.jobs.channel import IncomingMessage, OutgoingMessage, skip_to_mark
from farandole.jobs.launched_worker import Worker
from farandole.jobs.slot_channel import SlotChannel

QUICK: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}, "cooldown_range": (0, 0)}


@pytest.fixture(autouse=True)
def guard_against_hanging() -> Iterator[None]:
    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"no end after {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(HANG_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def train(deaths: dict[int, int], wanted: int, data: Any = None) -> tuple[int, int, int, Any]:
    """Train until the workers that shall die are dead, and `wanted` workers are there. `deaths` has
    the step before which a worker dies, by its number."""
    from farandole import calls, elastic, lifecycle  # noqa: PLC0415
    from farandole.objects import broadcast_object  # noqa: PLC0415

    number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
    farandole.init()
    state = elastic.ObjectState(broadcast_object, lifecycle.rank, step=0)

    @(lambda function: elastic.run_fn(function, elastic.reset_job))
    def loop(state: elastic.ObjectState) -> None:
        while state.step <= max(deaths.values(), default=0) or farandole.size() != wanted:
            calls.barrier()
            state.step += 1
            if state.step == deaths.get(number):
                if number % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError(f"worker {number} has no data")
            state.commit()
            time.sleep(0.005)

    loop(state)
    return number, farandole.rank(), farandole.size(), data


def test_results_are_those_of_the_last_group(capfd: pytest.CaptureFixture[str]) -> None:
    data = np.arange(200_000)
    results = farandole.run(train, ({1: 10, 2: 20}, 3, data), n=3, min_workers=1, **QUICK)
    assert [(rank, size) for _, rank, size, _ in results] == [(0, 3), (1, 3), (2, 3)]
    numbers = {number for number, *_ in results}
    assert 0 in numbers and not numbers & {1, 2}, numbers
    assert all(np.array_equal(result[3], data) for result in results)
    shown = capfd.readouterr()
    assert "[2] ValueError: worker 2 has no data" in shown.err
    assert "was killed by signal 9 (SIGKILL)" in shown.err


def test_there_are_fewer_results_than_workers_at_the_start() -> None:
    slow = QUICK | {"cooldown_range": (600, 600)}
    results = farandole.run(train, ({0: 5, 1: 9}, 2), n=4, min_workers=2, **slow)
    assert sorted(result[0] for result in results) == [2, 3]
    assert [result[1:3] for result in results] == [(0, 2), (1, 2)]


def test_a_job_that_cannot_go_on_names_the_worker_and_the_reason() -> None:
    with pytest.raises(farandole.WorkerError, match=r"^worker 0 \(pid \d+\) raised ") as caught:
        farandole.run(train, ({0: 5}, 9), n=1, min_workers=1, **QUICK)
    text = "the job ends: no worker is left that has the state of the training"
    assert "ValueError: worker 0 has no data" in str(caught.value) and text in str(caught.value)
    assert (caught.value.rank, caught.value.exception_type) == (0, "ValueError")

    # The second change, in which a new worker joins, is not allowed.
    with pytest.raises(farandole.FarandoleError, match=r"the limit of 1 resets is reached"):
        farandole.run(train, ({1: 5}, 9), n=2, min_workers=1, reset_limit=1, **QUICK)

    slow = QUICK | {"cooldown_range": (60, 60), "elastic_timeout": 1}
    with pytest.raises(farandole.WorkerError, match="fewer than 2 workers could be found"):
        farandole.run(train, ({1: 5}, 9), n=2, min_workers=2, **slow)


def test_a_worker_that_ends_well_without_a_result_is_an_error() -> None:
    def leave() -> None:
        farandole.init()
        if farandole.rank() == 1:
            sys.exit(0)

    text = r"^worker 1 \(pid \d+\) exited with code 0 before its function had returned"
    with pytest.raises(farandole.WorkerError, match=text):
        farandole.run(leave, n=2, min_workers=1, **QUICK)


def test_functions_that_join_no_job_are_ordered_by_slot() -> None:
    def slot() -> int:
        return int(os.environ["FARANDOLE_RANK"])

    assert farandole.run(slot, n=3, min_workers=1, **QUICK) == [0, 1, 2]


def test_ctrl_c_ends_an_elastic_job(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt_when_it_runs(folder: Path) -> None:
        while not (folder / "runs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def wait(folder: str) -> None:
        farandole.init()
        (Path(folder) / "runs").touch()
        time.sleep(HANG_SECONDS)

    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=interrupt_when_it_runs, args=(Path(folder),)).start()
        with pytest.raises(KeyboardInterrupt):
            farandole.run(wait, (folder,), n=2, min_workers=1, **QUICK)


class Slot:
    """A slot whose workers are threads that die at random places."""

    def __init__(self, message: list[bytes]) -> None:
        end, self.workers_end = socket.socketpair()
        self.selector = selectors.DefaultSelector()
        self.channel = SlotChannel(end, message, self.selector)

    def follow(self, worker: Worker, run: threading.Thread) -> None:
        """Do what the thread that follows the job does, until the worker has ended."""
        self.channel.begin(worker)
        run.start()
        while run.is_alive():
            self._serve(0.001)
        self._serve(0)
        self.channel.receive()
        worker.record_end("code", 0, False)

    def _serve(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            if not key.data():
                self.selector.unregister(key.fileobj)


@pytest.mark.parametrize("seed", range(20))
def test_a_new_worker_gets_the_function_whatever_the_last_one_has_read(seed: int) -> None:
    chooser = random.Random(seed)
    message = [b"{}", chooser.randbytes(chooser.choice((10, 3000, 2_000_000)))]
    slot = Slot(message)

    def read_some(count: int) -> None:
        while count > 0 and (got := len(slot.workers_end.recv(min(count, 1 << 16)))):
            count -= got

    def answer(part: float) -> None:
        assert skip_to_mark(slot.workers_end)
        call = IncomingMessage()
        call.advance(slot.workers_end)
        assert call.parts == message
        outcome = OutgoingMessage([b'{"kind": "result", "type": "int", "place": [3, 1]}', reply])
        if part == 1:
            outcome.advance(slot.workers_end)
        else:  # it dies in the middle of its answer
            slot.workers_end.send(b"".join(outcome._rest)[: int(part * len(reply))])

    reply = chooser.randbytes(50_000)
    for _ in range(chooser.randrange(4)):
        if chooser.random() < 0.5:
            count = chooser.choice((0, 1, 15, 16, 17, 40, 2000, 100_000))
            size = sum(map(len, message)) + 40
            dying = threading.Thread(target=read_some, args=(min(count, size),))
        else:
            dying = threading.Thread(target=answer, args=(chooser.random(),))
        worker = Worker(0, "", True)
        slot.follow(worker, dying)
        assert worker.state == "failed"
    worker = Worker(0, "", True)
    slot.follow(worker, threading.Thread(target=answer, args=(1,)))
    assert worker.state == "done" and worker.place == (3, 1)
    assert bytes(worker._incoming.parts[1]) == reply
    slot.channel.close()


def test_the_mark_is_found_at_any_place() -> None:
    ours, theirs = socket.socketpair()
    message = OutgoingMessage([b"abc"], is_marked=True)
    mark = bytes(message._rest[0])
    for before in (b"", mark[:-1], mark[:15] * 3, bytes(70_000), mark[:7] + mark[:7]):
        ours.send(before[:3])
        sender = threading.Thread(target=lambda before=before: ours.sendall(before[3:] + mark))
        sender.start()
        assert skip_to_mark(theirs)
        sender.join()
        ours.send(b"x")
        assert theirs.recv(9) == b"x"
    ours.send(mark[:9])
    ours.close()
    assert not skip_to_mark(theirs)
    assert re.fullmatch(rb"(?s).{16}", mark)
