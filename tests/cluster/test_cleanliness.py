"""No process or file of a job outlives the job, whichever process is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from launched import CommandRun, new_files_after_wait, run, run_shell, shared_files

# A worker that starts a child, a child with a session and a child of its own, and a process whose
# parent has ended.
PROCESS_TREE = (
    "sleep 1000 & setsid sh -c 'sleep 1001 & wait' & sh -c 'setsid sleep 1002 &'; "
    "echo worker $$ agent $PPID; "
)


@pytest.mark.parametrize("victim", ["foreground", "agent", "worker"])
def test_nothing_outlives_a_killed_process(victim: str) -> None:
    with CommandRun("run", "-n", "2", "sh", "-c", PROCESS_TREE + "wait; true") as job:
        job.read_until("agent", times=2)
        worker, agent = map(int, re.findall(r"\d+", job.output.split("] ", 1)[1])[:2])
        pid = {"foreground": job.process.pid, "agent": agent, "worker": worker}[victim]
        while len(job.remaining_processes()) < 8:  # some processes may not have started yet
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        assert job.end() in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert job.remaining_processes() == []
    if victim == "agent":
        assert "agent (pid" in job.errors
    if victim == "worker":
        assert "was killed by signal 9 (SIGKILL)" in job.errors


def test_nothing_outlives_a_job_that_succeeds() -> None:
    job = run_shell(2, PROCESS_TREE + "exit 0")  # run_shell checks that no process is left
    assert job.process.returncode == 0


def test_nothing_outlives_a_job_that_fails() -> None:
    job = run_shell(2, PROCESS_TREE + 'trap "" TERM; [ $FARANDOLE_RANK = 1 ] && exit 9; wait; wait')
    assert job.process.returncode == 9


ALLREDUCE = (
    "import torch, farandole.torch as hvd; hvd.init();"
    "print(int(hvd.allreduce(torch.ones(1_000_000), op=hvd.Sum)[0]))"
)


@pytest.mark.skipif(find_spec("farandole") is None, reason="the package is not installed")
def test_no_files_are_left(tmp_path: Path) -> None:
    files_before = shared_files()
    job = run(
        *("run", "-n", "2", sys.executable, "-c", ALLREDUCE), environment={"TMPDIR": str(tmp_path)}
    )
    assert sorted(job.output.splitlines()) == ["[0] 2", "[1] 2"]
    assert new_files_after_wait(shared_files, files_before) == []
    assert not os.listdir(tmp_path)
