"""Starts the `farandole` command, to test the launcher itself. Most workers are shell scripts."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType

import pytest

TIMEOUT_SECONDS = 300  # only a guard against hanging: no test depends on a duration


def command() -> str:
    """Return the path of the command: FARANDOLE_COMMAND if this is set, else the command beside
    this Python, else the one in PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command_path = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole", path=path)
    assert command_path is not None, "the farandole command is not installed"
    return command_path


def shared_files() -> list[str]:
    """List the files in /dev/shm, except those that PyTorch and Python make in other tests."""
    return sorted(n for n in os.listdir("/dev/shm") if not n.startswith(("torch_", "sem.", "psm_")))


def new_files_after_wait(list_files: Callable[[], list[str]], files_before: list[str]) -> list[str]:
    """Files that are not in `files_before` may belong to other tests, which remove their files
    soon. Give other tests time for this, and return the new files that are left."""
    deadline = time.monotonic() + TIMEOUT_SECONDS / 5
    while (new := sorted(set(list_files()) - set(files_before))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return new


@contextmanager
def command_for_all_users() -> Iterator[str]:
    """Provide a copy of the command in a folder that every user can enter and write to.

    The command may lie in a home directory, which other users cannot enter.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        closed_folders = [
            place for place in folder.parents if not place.stat().st_mode & stat.S_IXOTH
        ]
        if closed_folders:
            pytest.skip(f"other users cannot enter {closed_folders[0]}")
        yield str(shutil.copy2(command(), folder))


class CommandRun:
    """One run of the command. A mark in its environment identifies every process that it starts."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        before_exec: Callable[[], object] | None = None,
        seconds: int = TIMEOUT_SECONDS,
        program: str | None = None,  # a program that runs instead of the command
    ) -> None:
        self.seconds = seconds
        self.mark = f"FARANDOLE_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}

        def prepare() -> None:
            os.setpgrp()  # as in a shell with job control: SIGTSTP can stop the group
            if before_exec is not None:
                before_exec()

        self.process = subprocess.Popen(
            [program or command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, name: value, **(environment or {})},
            preexec_fn=prepare,  # noqa: PLW1509 - the tests have one thread
        )
        self.output = ""
        self.errors = ""
        # The whole output, which end() has read.
        self._remaining_lines: dict[str, list[str]] = {"output": [], "errors": []}

    def __enter__(self) -> CommandRun:
        signal.signal(signal.SIGALRM, self._raise_timeout)
        signal.alarm(self.seconds)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.alarm(0)
        for pid in self.remaining_processes():
            with suppress(ProcessLookupError):  # the process has just ended
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def _raise_timeout(self, _signal: int, _frame: FrameType | None) -> None:
        output = "".join(
            [
                self.output,
                *self._remaining_lines["output"],
                self.errors,
                *self._remaining_lines["errors"],
            ]
        )
        raise TimeoutError(f"no end after {self.seconds} s; so far:\n{output}")

    def read_until(self, text: str, times: int = 1) -> None:
        """Read the standard output until `text` has occurred `times` times."""
        assert self.process.stdout is not None
        while self.output.count(text) < times:
            line = self.process.stdout.readline()
            assert line, f"the end came before {text!r}:\n{self.output}{self.errors}"
            self.output += line

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Read until no process has the output open any more, and return the exit code.

        The last process that holds it is a process of the launcher, which ends after all workers
        and their children.
        """
        # communicate() would lose the text that read_until() has left in the buffers of the
        # streams.
        error_reader = threading.Thread(
            target=self._remaining_lines["errors"].extend,
            args=(self.process.stderr or (),),
            daemon=True,
        )
        error_reader.start()
        self._remaining_lines["output"].extend(self.process.stdout or ())
        error_reader.join()
        self.output += "".join(self._remaining_lines["output"])
        self.errors += "".join(self._remaining_lines["errors"])
        self._remaining_lines = {"output": [], "errors": []}
        return self.process.wait()

    def remaining_processes(self) -> list[int]:
        """List the processes that are alive and carry the mark."""
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if self._carries_mark(pid)
        ]

    def _carries_mark(self, pid: int) -> bool:
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # the process may have ended


def run(*arguments: str, environment: dict[str, str] | None = None) -> CommandRun:
    """Run the command to its end, and check that no process of it is left."""
    with CommandRun(*arguments, environment=environment) as launched:
        launched.end()
        assert launched.remaining_processes() == []
    return launched


def run_shell(workers: int, script: str) -> CommandRun:
    return run("run", "-n", str(workers), "sh", "-c", script)


def kill(launched: CommandRun, number: int) -> int:
    """Kill the worker with this number in an elastic job, and return its process id."""
    victim = next(
        pid
        for pid in launched.remaining_processes()
        if f"FARANDOLE_ELASTIC_WORKER={number}\0" in environment_of(pid)
    )
    os.kill(victim, signal.SIGKILL)
    return victim


def environment_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ") as file:
            return file.read()
    except OSError:
        return ""  # the process has ended


@pytest.fixture(autouse=True)
def fail_after_timeout() -> Iterator[None]:
    """Fail a test that hangs. This fixture guards all tests of each file that imports it."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"no end after {TIMEOUT_SECONDS} s")

    previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(TIMEOUT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)
