"""Processes join a job, leave it in many ways, and fork. The engine changes none of their signal
handlers and hooks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from job import run

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300

# For each way to end: the exit code of rank 1, and the cause that the error of rank 0 shows.
INTERRUPTED = (130, "has left the job (raised KeyboardInterrupt)")
EXPECTED_EXITS = {
    "end": (0, "has left the job (its program ended)"),
    "exit": (5, "has left the job (its program ended)"),
    "_exit": (6, "has died"),
    "exception": (1, "has left the job (raised ValueError: no data)"),
    "surrogate": (1, r"has left the job (raised ValueError: cannot read \udcff.png)"),
    "speechless": (1, "has left the job (raised TextlessError)"),
    "nameless": (1, "has left the job (raised an exception that cannot be described)"),
    "interrupt": INTERRUPTED,
    "interrupt twice": INTERRUPTED,
    "interrupted add": INTERRUPTED,
    "exit in a handler": (7, "has left the job (its program ended)"),
    "shutdown in a handler": (0, "has left the job (it called shutdown())"),
    "daemon threads": (0, "has left the job (its program ended)"),
}
# If a process prints one of these words, it has crashed.
CRASH_WORDS = re.compile(r"Fatal Python|terminate called|Aborted|Segmentation|Exception ignored")
# What Python prints if a second interrupt comes while the process ends because of the first one.
INTERRUPTED_AT_EXIT = re.compile(
    r"^\[1\] Exception ignored in.*\n(?:\[1\] (?:Traceback| ).*\n)*\[1\] KeyboardInterrupt: *\n",
    re.M,
)


@pytest.mark.parametrize("exit_name", EXPECTED_EXITS)
def test_leaving_with_calls_that_are_not_done(exit_name: str) -> None:
    code, cause = EXPECTED_EXITS[exit_name]
    job = run(2, sys.executable, HERE / "leaving_worker.py", exit_name, timeout=TIMEOUT_SECONDS)
    assert job.code == code, job.text
    lines = [line for line in job.text.splitlines() if "survivor: " in line]
    assert len(lines) == 1 and "rank 1" in lines[0] and cause in lines[0], job.text
    text = job.text
    if exit_name == "interrupt twice":
        # A line of the other rank may be in the middle of the lines of this one.
        by_rank = sorted(text.splitlines(keepends=True), key=lambda line: line[:3])
        text = INTERRUPTED_AT_EXIT.sub("", "".join(by_rank))
    assert not CRASH_WORDS.search(text), job.text
    if code == 1:
        exception = cause.removeprefix("has left the job (raised ").removesuffix(")")
        assert f"raised {exception} " in job.text, job.text  # the launcher reports this
    if exit_name == "shutdown in a handler":
        assert "raised: shutdown() was called before this call was done" in job.text


def test_memory_is_borrowed_until_the_engine_has_stopped() -> None:
    job = run(2, sys.executable, HERE / "racing_worker.py", timeout=TIMEOUT_SECONDS)
    assert job.code == 0, job.text
    assert job.text.count("nothing was written too late") == 2, job.text


def test_forks_in_every_state(tmp_path: Path) -> None:
    worker = HERE / "forking_worker.py"
    job = run(2, sys.executable, worker, tmp_path / "ready", timeout=TIMEOUT_SECONDS)
    assert job.code == 0, job.text
    assert job.text.count("the parent works") == 2, job.text
    assert "is left over from another job" in job.text, job.text


@pytest.mark.parametrize("size", [1, 2])
def test_handlers_and_hooks_stay_as_they_are(size: int) -> None:
    job = run(size, sys.executable, HERE / "program_with_handlers.py", timeout=TIMEOUT_SECONDS)
    assert job.code == 0, job.text
    assert job.text.count("nothing was changed") == size, job.text
