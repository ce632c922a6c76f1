"""Whatever is killed, and however: nothing that a job has started outlives it."""

from __future__ import annotations

import os
import re
import signal

import pytest
from launched import Launched, run_shell

# A worker with a child, a grandchild in a session of its own, and one that lost its parent.
FAMILY = (
    "sleep 1000 & setsid sh -c 'sleep 1001 & wait' & sh -c 'setsid sleep 1002 &'; "
    "echo worker $$ agent $PPID; "
)


@pytest.mark.parametrize("victim", ["keeper", "agent", "worker"])
def test_nothing_outlives_a_killed(victim: str) -> None:
    with Launched("run", "-n", "2", "sh", "-c", FAMILY + "wait; true") as job:
        job.read_until("agent", times=2)
        worker, agent = map(int, re.findall(r"\d+", job.output.split("] ", 1)[1])[:2])
        pid = {"keeper": job.process.pid, "agent": agent, "worker": worker}[victim]
        assert len(job.left()) >= 8
        os.kill(pid, signal.SIGKILL)
        assert job.end() in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert job.left() == []
    if victim == "agent":
        assert "agent of this job" in job.errors or "agent (pid" in job.errors
    if victim == "worker":
        assert "was killed by signal 9 (SIGKILL); the job has ended" in job.errors


def test_nothing_outlives_a_success() -> None:
    job = run_shell(2, FAMILY + "exit 0")  # run_shell looks for what is left
    assert job.process.returncode == 0


def test_nothing_outlives_a_failure() -> None:
    job = run_shell(2, FAMILY + 'trap "" TERM; [ $FARANDOLE_RANK = 1 ] && exit 9; wait; wait')
    assert job.process.returncode == 9


def test_no_files_are_left() -> None:
    before = {folder: set(os.listdir(folder)) for folder in ("/dev/shm", "/tmp")}
    mark = "farandole"
    run_shell(2, "exit 0")
    for folder, names in before.items():
        assert [name for name in set(os.listdir(folder)) - names if mark in name] == []
