"""Starts the `horovodrun` that was installed with this Python.

A job that hangs is killed, and the error shows its output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TIMEOUT_SECONDS = 300  # only a guard against hanging: no test depends on a duration
COMMAND_FOLDER = Path(sys.executable).parent


def run(
    words: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Return its output, its error output and its exit code."""
    path = os.pathsep.join([str(COMMAND_FOLDER), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        [str(word) for word in words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"no end after {TIMEOUT_SECONDS} s:\n{output}{errors}") from None
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def horovodrun(
    *words: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run([COMMAND_FOLDER / "horovodrun", *words], environment=environment)
