"""Starts real jobs with the `farandole` command. A job that hangs is killed, and the error shows
its output."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Job:
    code: int
    text: str  # what all workers and the launcher wrote
    seconds: float


def command(size: int, *program: str | Path) -> list[str]:
    """Return `farandole run` as a list of words.

    The command is the value of FARANDOLE_COMMAND, or the command that was installed with this
    Python, or the command in PATH.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    farandole = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole", path=path)
    assert farandole is not None, "the farandole command is not installed"
    return [farandole, "run", "-n", str(size), *map(str, program)]


def command_of_launcher(launcher: str, size: int, *program: str | Path) -> list[str] | None:
    """Return the command line for torchrun, mpirun (Open MPI) or mpiexec (MPICH).

    Return None if that launcher is not installed.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node"]
    words = {
        "torchrun": torchrun,
        "mpirun": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"],
        "mpiexec": ["mpiexec.hydra", "-n"],
    }[launcher]
    if shutil.which(words[0]) is None:
        return None
    return [*words, str(size), *map(str, program)]


def start_job(
    size: int, *program: str | Path, environment: Mapping[str, str] | None = None
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a job in a session of its own. At the end, kill the processes that the job has left."""
    return start_command(command(size, *program), environment)


@contextmanager
def start_command(
    words: list[str], environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a session of its own. At the end, kill the processes that the command has
    left."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(
    size: int,
    *program: str | Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> Job:
    return run_command(command(size, *program), environment, timeout)


def run_command(
    words: list[str], environment: Mapping[str, str] | None = None, timeout: float = 600
) -> Job:
    begin = time.monotonic()
    with start_command(words, environment) as process:
        try:
            text, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            raise AssertionError(f"the job hung for {timeout} s and wrote:\n{text}") from None
    return Job(process.returncode, text, time.monotonic() - begin)


def run_checks(size: int, *suites: str, timeout: float = 600) -> None:
    """Run all checks of the suites with `size` workers. A suite is given as `module:Class`.
    `timeout` is the limit for each suite in seconds."""
    job = run(size, sys.executable, WORKER, *suites, timeout=timeout * len(suites))
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == size, job.text


def last_error_of(program: str) -> str:
    """Return the last line that a Python program writes to its standard error."""
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    return result.stderr.splitlines()[-1]


def run_programs_of_page(page: Path, folder: Path) -> None:
    """Run the Python programs of a page with two workers, and compare what rank 0 prints with the
    comments `# prints …`. Write the programs into `folder`."""
    programs = re.findall(r"^```python\n(.+?)^```", page.read_text(), re.M | re.S)
    assert programs
    for number, program in enumerate(programs):
        file = folder / f"program_{number}.py"
        file.write_text(program)
        job = run(2, sys.executable, file)
        assert job.code == 0, job.text
        for line in re.findall(r"# prints (.+)$", program, re.M):
            assert f"[0] {line}\n" in job.text, job.text


def everyday_and_long(everyday: Iterable[Any], long: Iterable[Any]) -> list[Any]:
    """Return the values of a test parameter. The values in `long` are used only in the long
    tests."""
    return [*everyday, *(pytest.param(value, marks=pytest.mark.long) for value in long)]
