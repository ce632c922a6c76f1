"""What a job does when one of its workers fails, or when the user has seen enough."""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from pathlib import Path

import pytest
from job import run, started

HERE = Path(__file__).parent
HANG_SECONDS = 60

# How a worker fails: the exit code of the job, and how the others tell the cause.
FAILURES = {
    "raise": (1, "uncaught ValueError: bad data"),
    "exit": (1, "its program ended"),
    "_exit": (3, "died"),
    "kill": (128 + signal.SIGKILL, "died"),
}


def processes_of(mark: str) -> list[str]:
    """Those that are alive and have `mark` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # gone, or not ours
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", FAILURES)
def test_a_worker_fails(how: str, size: int) -> None:
    code, cause = FAILURES[how]
    mark, culprit = uuid.uuid4().hex, size - 1
    job = run(
        size,
        *(sys.executable, HERE / "failing_worker.py", how, str(culprit)),
        environment={"FARANDOLE_TEST_MARK": mark},
        timeout=HANG_SECONDS,
    )
    assert job.code == code, job.text
    for rank in range(size - 1):
        lines = [line for line in job.text.splitlines() if f"survivor {rank}: " in line]
        assert len(lines) == 1, job.text
        assert f"rank {culprit}" in lines[0] and cause in lines[0], lines[0]
        assert f"left in {rank}: [] []" in job.text, job.text
    assert processes_of(mark) == []


WAITS = {"init": r"lifecycle\.py\", line \d+, in init", "call": r"handle\.py\", line \d+, in wait"}


@pytest.mark.parametrize("where", WAITS)
def test_interrupt_during_a_wait(where: str) -> None:
    mark = uuid.uuid4().hex
    program = (sys.executable, HERE / "waiting_worker.py", where)
    with started(2, *program, environment={"FARANDOLE_TEST_MARK": mark}) as process:
        assert process.stdout is not None
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        signal.alarm(HANG_SECONDS)
        text = ""
        while "[0] waiting" not in text:
            line = process.stdout.readline()
            assert line, text
            text += line
        os.killpg(process.pid, signal.SIGINT)
        text += process.stdout.read()
        process.wait()
        signal.alarm(0)
    assert process.returncode == 128 + signal.SIGINT, text
    assert "KeyboardInterrupt" in text, text
    assert re.search(WAITS[where], text), text
    assert "Fatal" not in text, text
    assert processes_of(mark) == []
