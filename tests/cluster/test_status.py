"""`farandole status` with computing, waiting and stopped ranks, and without any job."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched import CommandRun, command, command_for_all_users
from test_stalls import NO_WARNING, continue_late_rank, job, pid_of_rank

JOB_KEYS = ["pid", "host", "command", "seconds", "size", "ranks"]
RANK_KEYS = (
    "rank host pid state cores seconds reason call waits_for calls bytes waited_seconds "
    "in_job_seconds"
).split()
Job = dict[str, Any]


def run_status(
    *words: str,
    code: int = 0,
    user: int | None = None,
    program: str | None = None,
    shown_pid: int | None = None,
) -> tuple[str, str]:
    """Return the output and the error output. Remove the errors about jobs that cannot be read,
    which belong to other tests, except the error about the process `shown_pid`."""
    completed = subprocess.run(
        [program or command(), "status", *words],
        capture_output=True,
        text=True,
        check=False,
        user=user,
    )
    assert completed.returncode == code, completed.stdout + completed.stderr
    unreadable_jobs = (
        rf"farandole status: the job of process (?!{shown_pid}\b)\d+ cannot be read; .*\n"
    )
    return completed.stdout, re.sub(unreadable_jobs, "", completed.stderr)


def read_job(launched: CommandRun) -> Job:
    output, errors = run_status(str(launched.process.pid), "--json")
    assert errors == ""
    (shown_job,) = json.loads(output)
    assert list(shown_job) == JOB_KEYS
    assert shown_job["pid"] == launched.process.pid
    assert shown_job["size"] == len(shown_job["ranks"])
    for number, row in enumerate(shown_job["ranks"]):
        assert list(row) == RANK_KEYS
        assert row["rank"] == number
    return dict(shown_job)


def wait_for_status(launched: CommandRun, condition: Callable[[Job], bool]) -> Job:
    """Read the job until `condition` is true. fail_after_timeout() limits this loop, too."""
    while True:
        shown_job = read_job(launched)
        if condition(shown_job):
            return shown_job
        time.sleep(0.05)


def rank_states(shown_job: Job) -> list[str]:
    return [row["state"] for row in shown_job["ranks"]]


def test_a_waiting_rank_is_shown_with_the_rank_it_waits_for(tmp_path: Path) -> None:
    with job("come_late", 3, tmp_path, NO_WARNING) as launched:
        launched.read_until("waits for go")
        # On a busy machine, rank 0 may still be in its first call, although the other ranks have
        # finished theirs.
        shown_job = wait_for_status(
            launched,
            lambda f: (
                rank_states(f) == ["waits", "computes", "waits"]
                and [row["calls"] for row in f["ranks"]] == [1, 1, 1]
            ),
        )
        waiting_rank, late_rank, _ = shown_job["ranks"]
        assert waiting_rank["waits_for"] == [1]
        assert waiting_rank["call"]["operation"] == "barrier"
        assert waiting_rank["call"]["group"] == 0
        assert (late_rank["waits_for"], late_rank["call"]) == ([], None)
        assert [row["pid"] for row in shown_job["ranks"]] == [
            pid_of_rank(launched, r) for r in range(3)
        ]
        assert "stalling_worker.py come_late" in shown_job["command"]
        later_job = wait_for_status(
            launched, lambda f: f["ranks"][0]["waited_seconds"] > waiting_rank["waited_seconds"]
        )
        assert later_job["ranks"][0]["seconds"] > waiting_rank["seconds"]
        assert later_job["ranks"][0]["in_job_seconds"] >= later_job["ranks"][0]["waited_seconds"]
        assert later_job["seconds"] > shown_job["seconds"] > 0
        check_table(launched)
        continue_late_rank(launched, tmp_path)
    assert run_status(str(launched.process.pid), code=1) == (
        "",
        f"farandole status: no job {launched.process.pid} of yours runs on this host\n",
    )


def check_table(launched: CommandRun) -> None:
    output, errors = run_status(str(launched.process.pid))
    assert errors == ""
    lines = output.splitlines()
    assert lines[0].startswith(f"job {launched.process.pid} on ")
    assert lines[2].split() == "rank pid calls bytes waited share now".split()
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert lines[6].startswith("ranks 0, 2 wait for rank 1 in barrier `")
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b" not in output


def test_a_rank_before_init_is_shown(tmp_path: Path) -> None:
    with job("come_late_to_init", 2, tmp_path, NO_WARNING) as launched:
        launched.read_until("waits for go")
        shown_job = wait_for_status(launched, lambda f: rank_states(f) == ["init", "outside"])
        assert shown_job["ranks"][0]["in_job_seconds"] is None
        assert shown_job["ranks"][1]["seconds"] is None
        continue_late_rank(launched, tmp_path)


def test_joined_and_stopped_ranks_are_shown(tmp_path: Path) -> None:
    with job("join_late", 2, tmp_path, NO_WARNING) as launched:
        launched.read_until("waits for go")
        wait_for_status(launched, lambda f: rank_states(f) == ["joined", "computes"])
        pid = pid_of_rank(launched, 1)
        os.kill(pid, signal.SIGSTOP)
        shown_job = wait_for_status(launched, lambda f: rank_states(f) == ["joined", "stopped"])
        assert shown_job["ranks"][1]["reason"] == "SIGSTOP"
        os.kill(pid, signal.SIGCONT)
        wait_for_status(launched, lambda f: rank_states(f) == ["joined", "computes"])
        continue_late_rank(launched, tmp_path)


def test_a_rank_that_has_ended_is_shown(tmp_path: Path) -> None:
    wait = 'while ! [ -e "$0/end" ]; do sleep 0.1; done'
    program = f"echo here; [ $FARANDOLE_RANK != 0 ] || exit 0; {wait}"
    with CommandRun("run", "-n", "2", "sh", "-c", program, str(tmp_path)) as launched:
        launched.read_until("here", times=2)
        shown_job = wait_for_status(launched, lambda f: rank_states(f) == ["ended", "outside"])
        assert shown_job["ranks"][0]["reason"] == "exited with code 0"
        (tmp_path / "end").touch()
        assert launched.end() == 0


def test_several_jobs_are_listed(tmp_path: Path) -> None:
    with (
        job("come_late", 2, tmp_path, NO_WARNING) as first_job,
        job("come_late", 2, tmp_path, NO_WARNING) as second_job,
    ):
        first_job.read_until("waits for go")
        second_job.read_until("waits for go")
        output, _ = run_status("--json")
        pids = [shown_job["pid"] for shown_job in json.loads(output)]
        assert pids == sorted(pids)
        assert {first_job.process.pid, second_job.process.pid} <= set(pids)
        tables, _ = run_status()
        assert f"job {first_job.process.pid} on " in tables
        assert f"job {second_job.process.pid} on " in tables
        continue_late_rank(first_job, tmp_path)
        continue_late_rank(second_job, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_jobs_of_others_are_not_shown(tmp_path: Path) -> None:
    nobody_uid = 65534
    with command_for_all_users() as program, job("come_late", 2, tmp_path, NO_WARNING) as launched:
        launched.read_until("waits for go")
        message = "farandole status: no job of yours runs on this host\n"
        assert run_status(code=1, user=nobody_uid, program=program) == ("", message)
        assert run_status("--json", code=1, user=nobody_uid, program=program) == ("[]\n", message)
        continue_late_rank(launched, tmp_path)


FAKE_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, b"farandole-agent", 0, 0, 0)
memory = os.memfd_create("farandole-job", os.MFD_ALLOW_SEALING)
os.write(memory, bytes(range(256)) * 64)
import fcntl
fcntl.fcntl(memory, 1033, 7)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_that_only_looks_like_a_launcher_is_reported(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FAKE_LAUNCHER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        with job("come_late", 2, tmp_path, NO_WARNING) as launched:
            launched.read_until("waits for go")
            output, errors = run_status("--json", shown_pid=stranger.pid)
            assert launched.process.pid in [shown_job["pid"] for shown_job in json.loads(output)]
            assert f"the job of process {stranger.pid} cannot be read" in errors
            continue_late_rank(launched, tmp_path)


def test_jobs_may_start_and_end_during_status() -> None:
    for _ in range(5):
        words = ("run", "-n", "4", "sh", "-c", "exit 0")
        with CommandRun(*words) as launched:
            while launched.process.poll() is None:
                completed = subprocess.run(
                    [command(), "status", "--json"], capture_output=True, check=False
                )
                assert completed.returncode in (0, 1), completed.stderr
                json.loads(completed.stdout)
            assert launched.end() == 0


def test_wrong_arguments_are_explained() -> None:
    assert "JOB" in run_status("x", code=2)[1]
    assert run_status("1", "2", code=2)[0] == ""


def test_the_table_on_a_terminal_has_colors(tmp_path: Path) -> None:
    with job("come_late", 2, tmp_path, NO_WARNING) as launched:
        launched.read_until("waits for go")
        wait_for_status(launched, lambda f: rank_states(f) == ["waits", "computes"])
        own_end, terminal_end = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        words = [command(), "status", str(launched.process.pid)]
        subprocess.run(words, stdout=terminal_end, env={**environment, "TERM": "xterm"}, check=True)
        os.close(terminal_end)
        text = b""
        while True:
            try:
                text += os.read(own_end, 65536)
            except OSError:  # the other end is closed
                break
        os.close(own_end)
        assert b"\x1b[33mwaits " in text
        continue_late_rank(launched, tmp_path)
