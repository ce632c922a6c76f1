"""Functions that a program runs as elastic jobs. Each new worker gets the function, and the last
group returns the results."""

from __future__ import annotations

import os
import random
import re
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import TIMEOUT_SECONDS, fail_after_timeout  # noqa: F401, the guard is autouse

import farandole
from farandole.jobs.channel import IncomingMessage, OutgoingMessage, skip_to_mark
from farandole.jobs.elastic_jobs import results_of
from farandole.jobs.launched_job import JobPlan, LaunchedJob
from farandole.jobs.launched_worker import Worker
from farandole.jobs.slot_channel import SlotChannel


@pytest.fixture(autouse=True)
def own_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test checks that jobs leave no files in /tmp, so these jobs use a folder of their
    own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


QUICK_RESTART: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}, "cooldown_range": (0, 0)}


def train(deaths: dict[int, int], group_size: int, data: Any = None) -> tuple[int, int, int, Any]:
    """Train until the workers in `deaths` are dead, and the group has `group_size` workers.

    `deaths` maps the number of a worker to the step before which this worker dies.
    """
    from farandole import calls, elastic, lifecycle  # noqa: PLC0415
    from farandole.objects import broadcast_object  # noqa: PLC0415

    number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
    farandole.init()
    state = elastic.ObjectState(broadcast_object, lifecycle.rank, step=0)

    @(lambda function: elastic.run_fn(function, elastic.reset_job))
    def loop(state: elastic.ObjectState) -> None:
        while state.step <= max(deaths.values(), default=0) or farandole.size() != group_size:
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
    results = farandole.run(train, ({1: 10, 2: 20}, 3, data), n=3, min_workers=1, **QUICK_RESTART)
    assert [(rank, size) for _, rank, size, _ in results] == [(0, 3), (1, 3), (2, 3)]
    numbers = {number for number, *_ in results}
    assert 0 in numbers and not numbers & {1, 2}, numbers
    assert all(np.array_equal(result[3], data) for result in results)
    captured = capfd.readouterr()
    assert "[2] ValueError: worker 2 has no data" in captured.err
    assert "was killed by signal 9 (SIGKILL)" in captured.err


def test_there_are_fewer_results_than_workers_at_the_start() -> None:
    slow_restart = QUICK_RESTART | {"cooldown_range": (600, 600)}
    results = farandole.run(train, ({0: 5, 1: 9}, 2), n=4, min_workers=2, **slow_restart)
    assert sorted(result[0] for result in results) == [2, 3]
    assert [result[1:3] for result in results] == [(0, 2), (1, 2)]


def test_a_job_that_cannot_go_on_names_the_worker_and_the_reason() -> None:
    with pytest.raises(farandole.WorkerError, match=r"^worker 0 \(pid \d+\) raised ") as caught:
        farandole.run(train, ({0: 5}, 9), n=1, min_workers=1, **QUICK_RESTART)
    text = "the job ends: no worker is left that has the state of the training"
    assert "ValueError: worker 0 has no data" in str(caught.value) and text in str(caught.value)
    assert (caught.value.rank, caught.value.exception_type) == (0, "ValueError")

    # The group changes once without worker 1. It would change again when worker 2 joins or, if
    # worker 2 has joined in the first change, when worker 2 dies.
    with pytest.raises(farandole.FarandoleError, match=r"the limit of 1 resets is reached"):
        farandole.run(train, ({1: 5, 2: 7}, 9), n=2, min_workers=1, reset_limit=1, **QUICK_RESTART)

    slow_restart = QUICK_RESTART | {"cooldown_range": (60, 60), "elastic_timeout": 1}
    with pytest.raises(farandole.WorkerError, match="fewer than 2 workers could be found"):
        farandole.run(train, ({1: 5}, 9), n=2, min_workers=2, **slow_restart)


def test_a_worker_that_ends_well_without_a_result_is_an_error() -> None:
    def leave() -> None:
        farandole.init()
        if farandole.rank() == 1:
            sys.exit(0)

    text = r"^worker 1 \(pid \d+\) exited with code 0 before its function had returned"
    with pytest.raises(farandole.WorkerError, match=text):
        farandole.run(leave, n=2, min_workers=1, **QUICK_RESTART)


def test_functions_that_join_no_job_are_ordered_by_slot() -> None:
    def slot() -> int:
        return int(os.environ["FARANDOLE_RANK"])

    assert farandole.run(slot, n=3, min_workers=1, **QUICK_RESTART) == [0, 1, 2]


def test_ctrl_c_ends_an_elastic_job(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt_when_it_runs(folder: Path) -> None:
        while not (folder / "runs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def wait(folder: str) -> None:
        farandole.init()
        (Path(folder) / "runs").touch()
        time.sleep(TIMEOUT_SECONDS)

    with tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=interrupt_when_it_runs, args=(Path(folder),)).start()
        with pytest.raises(KeyboardInterrupt):
            farandole.run(wait, (folder,), n=2, min_workers=1, **QUICK_RESTART)


HOSTS = [f"127.0.0.{number}" for number in (1, 2, 3)]  # addresses of this host, so no ssh is needed


def train_with_sizes(folder: str, sizes: list[int]) -> tuple[list[int], int, int]:
    """Train until the group has had these sizes, one after another. For each size, make a file in
    `folder`."""
    from farandole import calls, elastic, lifecycle  # noqa: PLC0415
    from farandole.objects import broadcast_object  # noqa: PLC0415

    farandole.init()
    state = elastic.ObjectState(broadcast_object, lifecycle.rank, reached=0)

    @(lambda function: elastic.run_fn(function, elastic.reset_job))
    def loop(state: elastic.ObjectState) -> None:
        while state.reached < len(sizes):
            calls.barrier()
            if farandole.size() == sizes[state.reached]:
                state.reached += 1
                (Path(folder) / f"reached.{state.reached}").touch()
            state.commit()
            time.sleep(0.005)

    loop(state)
    return sizes, farandole.rank(), int(os.environ["FARANDOLE_RANK"])


def test_a_function_of_the_program_lists_the_hosts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    problems = iter([RuntimeError("the cloud is down"), RuntimeError("the cloud is down"), 7])

    def hosts() -> Any:
        if not (tmp_path / "reached.1").exists():
            return dict.fromkeys(HOSTS[:2], 1)
        problem = next(problems, None)
        if isinstance(problem, Exception):
            raise problem
        if problem is not None:
            return problem
        if not (tmp_path / "reached.2").exists():
            return [f"{HOSTS[0]}:1", HOSTS[1], f"{HOSTS[2]}:2"]
        return {HOSTS[0]: 1, HOSTS[2]: 2}

    results = farandole.run(
        *(train_with_sizes, (str(tmp_path), [2, 4, 3])),
        **QUICK_RESTART,
        min_workers=2,
        max_workers=4,
        discover_hosts=hosts,
    )
    assert [result[1:] for result in results] == [(0, 0), (1, results[1][2]), (2, results[2][2])]
    assert {result[2] for result in results} == {0, 2, 3}
    errors = capfd.readouterr().err
    assert errors.count("RuntimeError: the cloud is down\nThe hosts stay as they are.") == 1
    assert "it has returned 7\nThe hosts stay as they are." in errors
    assert "_call_repeatedly" not in errors
    # A call of hosts() that has begun before the end of the job may still run.
    for thread in threading.enumerate():
        if thread.name == "farandole-hosts":
            thread.join(TIMEOUT_SECONDS)
            assert not thread.is_alive()
    assert not list(tmp_path.glob("farandole*"))


@pytest.mark.parametrize("kind", ["command", "path"])
def test_a_command_lists_the_hosts(kind: str, tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    script = tmp_path / "two words" / "hosts.sh"
    lines = f"echo {HOSTS[0]}:1\necho {HOSTS[1]}\n"
    script.write_text(f"#!/bin/sh\n{lines}")
    script.chmod(0o700)
    source = script if kind == "path" else lines
    results = farandole.run(
        *(train_with_sizes, (str(tmp_path), [3])),
        **QUICK_RESTART,
        n=3,
        min_workers=2,
        slots_per_host=2,
        discover_hosts=source,
    )
    assert [result[1] for result in results] == [0, 1, 2]


def test_the_first_errors_of_the_function_are_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError("no hosts")

    with pytest.raises(ZeroDivisionError, match="no hosts"):
        farandole.run(int, min_workers=1, discover_hosts=fail)
    with pytest.raises(farandole.CallError, match="it has returned None"):
        farandole.run(int, min_workers=1, discover_hosts=lambda: None)


def test_what_the_launcher_says_before_there_are_hosts_is_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(farandole.FarandoleError, match=r"(?s)no worker .*--elastic-t"):
        farandole.run(
            int, n=3, min_workers=3, discover_hosts=lambda: [HOSTS[0]], elastic_timeout=15
        )
    text = "the hosts have 1 slot so far; the job starts when there are 3"
    assert text in capfd.readouterr().err


def test_the_launcher_of_a_lost_host_gets_new_channels(tmp_path: Path) -> None:
    def train_and_lose_a_host(folder: str) -> tuple[list[int], int, int]:
        number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
        if number == 2:
            launcher = os.getppid()

            def kill_the_launcher() -> None:
                while not (Path(folder) / "reached.1").exists():
                    time.sleep(0.01)
                os.kill(launcher, signal.SIGKILL)

            threading.Thread(target=kill_the_launcher, daemon=True).start()
        while number > 2 and not (Path(folder) / "reached.2").exists():
            time.sleep(0.01)
        return train_with_sizes(folder, [3, 2, 3])

    hosts = ",".join(f"{host}:1" for host in HOSTS)
    results = farandole.run(
        train_and_lose_a_host, (str(tmp_path),), hosts=hosts, min_workers=1, **QUICK_RESTART
    )
    assert {result[2] for result in results} == {0, 1, 2}
    assert [result[1] for result in results] == [0, 1, 2]


def test_a_lost_result_is_an_error() -> None:
    workers = [Worker(slot, "", True) for slot in range(3)]
    for worker in workers:
        worker.exit_code, worker.state = 0, "done"
    for worker, place in zip(workers, ((4, 2, 3), (4, 0, 3), (3, 1, 3)), strict=True):
        worker._outcome = {"kind": "result", "type": "int", "place": place}
        worker._result = place[1]
    job = LaunchedJob(JobPlan(workers, [], [], {}))
    job.exit_code = 0
    with pytest.raises(farandole.FarandoleError, match=r"results of the ranks \[1\] are lost"):
        results_of(job)
    workers[2]._outcome["place"] = 4, 1, 3
    assert results_of(job) == [0, 1, 2]


class Slot:
    """The workers of one slot, which are threads here. They die at random points of a transfer."""

    def __init__(self, message: list[bytes]) -> None:
        end, self.workers_end = socket.socketpair()
        self.selector = selectors.DefaultSelector()
        self.channel = SlotChannel(end, message, self.selector)

    def follow(self, worker: Worker, run: threading.Thread) -> None:
        """Serve the channel until the worker has ended. In a real job, the thread that follows the
        job does this."""
        self.channel.send_to(worker)
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
    generator = random.Random(seed)
    message = [b"{}", generator.randbytes(generator.choice((10, 3000, 2_000_000)))]
    slot = Slot(message)

    def read_and_close(count: int) -> None:
        while count > 0 and (got := len(slot.workers_end.recv(min(count, 1 << 16)))):
            count -= got

    def answer_and_die(fraction: float) -> None:
        assert skip_to_mark(slot.workers_end)
        call = IncomingMessage()
        call.advance(slot.workers_end)
        assert call.parts == message
        outcome = OutgoingMessage([b'{"kind": "result", "type": "int", "place": [3, 1, 2]}', reply])
        if fraction == 1:
            outcome.advance(slot.workers_end)
        else:  # the worker dies in the middle of its answer
            slot.workers_end.send(b"".join(outcome._unsent)[: int(fraction * len(reply))])

    reply = generator.randbytes(50_000)
    for _ in range(generator.randrange(4)):
        if generator.random() < 0.5:
            count = generator.choice((0, 1, 15, 16, 17, 40, 2000, 100_000))
            size = sum(map(len, message)) + 40
            worker_thread = threading.Thread(target=read_and_close, args=(min(count, size),))
        else:
            worker_thread = threading.Thread(target=answer_and_die, args=(generator.random(),))
        worker = Worker(0, "", True)
        slot.follow(worker, worker_thread)
        assert worker.state == "failed"
    worker = Worker(0, "", True)
    slot.follow(worker, threading.Thread(target=answer_and_die, args=(1,)))
    assert worker.state == "done" and worker.last_epoch_rank_and_size == (3, 1, 2)
    assert bytes(worker._incoming_message.parts[1]) == reply
    slot.channel.close()


def test_the_mark_is_found_at_any_place() -> None:
    own_end, other_end = socket.socketpair()
    message = OutgoingMessage([b"abc"], is_marked=True)
    mark = bytes(message._unsent[0])
    for before in (b"", mark[:-1], mark[:15] * 3, bytes(70_000), mark[:7] + mark[:7]):
        own_end.send(before[:3])
        sender = threading.Thread(target=lambda before=before: own_end.sendall(before[3:] + mark))
        sender.start()
        assert skip_to_mark(other_end)
        sender.join()
        own_end.send(b"x")
        assert other_end.recv(9) == b"x"
    own_end.send(mark[:9])
    own_end.close()
    assert not skip_to_mark(other_end)
    assert re.fullmatch(rb"(?s).{16}", mark)
