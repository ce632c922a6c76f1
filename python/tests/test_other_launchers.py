"""Jobs that torchrun, mpirun, mpiexec or the test itself starts, without `farandole run`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from job import command_of_launcher, run_command

WORKER = Path(__file__).with_name("foreign_worker.py")
TIMEOUT_SECONDS = 600
LAUNCHERS = ["torchrun", "mpirun", "mpiexec"]


def words_of(launcher: str, size: int, *arguments: str) -> list[str]:
    words = command_of_launcher(launcher, size, sys.executable, WORKER, *arguments)
    if words is None:
        pytest.skip(f"{launcher} is not installed")
    return words


def start_by_hand(rank: int, size: int, port: int, action: str) -> subprocess.Popen[str]:
    variables = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    return subprocess.Popen(
        [sys.executable, WORKER, action],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
    )


@pytest.fixture
def port() -> int:
    """Return a free port, which identifies the job of this test. No process listens on it."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_joining_and_leaving_many_times(launcher: str) -> None:
    job = run_command(words_of(launcher, 3, "cycle"))
    assert job.code == 0, job.text
    for rank in range(3):
        assert f"rank {rank} of 3 is done" in job.text, job.text


def test_torchrun_starts_a_failed_job_again() -> None:
    words = words_of("torchrun", 2, "fail once")
    words.insert(words.index("--no-python"), "--max-restarts=1")
    job = run_command(words)
    assert job.code == 0, job.text
    for rank in range(2):
        assert f"restart 1: rank {rank} has 2.0" in job.text, job.text


def test_a_program_may_only_join_and_leave() -> None:
    """A rank may end while the other ranks have not returned from init() yet."""
    for _ in range(3):
        job = run_command(words_of("mpiexec", 4, "leave"))
        assert job.code == 0, job.text


def test_a_killed_rank_is_named(port: int) -> None:
    ranks = [start_by_hand(rank, 3, port, "die") for rank in range(3)]
    texts = [rank.communicate(timeout=TIMEOUT_SECONDS)[0] for rank in ranks]
    for text in (texts[0], texts[2]):
        assert f"raised: allreduce `never` cannot finish: rank 1 (pid {ranks[1].pid})" in text, (
            texts
        )


def test_a_missing_rank_is_named(port: int) -> None:
    os.environ["FARANDOLE_START_TIMEOUT"] = "1"
    try:
        rank_0 = start_by_hand(0, 2, port, "leave")
    finally:
        del os.environ["FARANDOLE_START_TIMEOUT"]
    text, _ = rank_0.communicate(timeout=TIMEOUT_SECONDS)
    assert "rank 0 waited 1 s for rank 1, in vain" in text


def test_ranks_on_several_hosts_need_a_secret() -> None:
    program = "import farandole; farandole.init()"
    variables = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert result.stderr.splitlines()[-1] == (
        "farandole.errors.CallError: torchrun has started rank 0 of 4, and not all ranks are on "
        "this host. Over several hosts, the ranks need a secret: make a file with `farandole "
        "secret FILE`, which all hosts can read, and set FARANDOLE_SECRET=FILE for all ranks; or "
        "start all ranks on one host"
    )


def test_a_left_over_world_size_without_a_rank_has_no_effect() -> None:
    program = "import farandole; farandole.init(); print(farandole.size())"
    result = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "WORLD_SIZE": "1", "MASTER_PORT": "29500"},
    )
    assert result.stdout == "1\n"
