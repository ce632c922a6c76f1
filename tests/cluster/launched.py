"""Starts the `farandole` command to test the launcher itself; workers are shell scripts."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import pytest

HANG_SECONDS = 120  # only a guard: no test depends on how long something takes


def command() -> str:
    """FARANDOLE_COMMAND, else the one that was installed with this Python, else that of PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole", path=path)
    assert found is not None, "the farandole command is not installed"
    return found


def shared_files() -> list[str]:
    """What lies in /dev/shm, but what PyTorch's and Python's own processes of other tests put there
    for a moment."""
    return sorted(n for n in os.listdir("/dev/shm") if not n.startswith(("torch_", "sem.", "psm_")))


@contextmanager
def command_for_all_users() -> Iterator[str]:
    """A copy of the command where every user can run it and write: a clone may lie in a home
    directory that others cannot enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        closed = [place for place in folder.parents if not place.stat().st_mode & stat.S_IXOTH]
        if closed:
            pytest.skip(f"other users cannot enter {closed[0]}")
        yield str(shutil.copy2(command(), folder))


class Launched:
    """One run of the command, marked in its environment so that whatever it leaves can be found."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        before_exec: Callable[[], object] | None = None,
        seconds: int = HANG_SECONDS,
        program: str | None = None,  # instead of the command
    ) -> None:
        self.seconds = seconds
        self.mark = f"FARANDOLE_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        self.process = subprocess.Popen(
            [program or command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, name: value, **(environment or {})},
            start_new_session=True,
            preexec_fn=before_exec,  # noqa: PLW1509 - the tests have one thread
        )
        self.output = ""
        self.errors = ""

    def __enter__(self) -> Launched:
        signal.signal(signal.SIGALRM, self._hangs)
        signal.alarm(self.seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.alarm(0)
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def _hangs(self, _signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {self.seconds} s; so far:\n{self.output}{self.errors}")

    def read_until(self, text: str, times: int = 1) -> None:
        """Reads the standard output until `text` came so often."""
        assert self.process.stdout is not None
        while self.output.count(text) < times:
            line = self.process.stdout.readline()
            assert line, f"the end came before {text!r}:\n{self.output}{self.errors}"
            self.output += line

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Reads on until nobody holds the output any more; the exit code. The launcher's processes
        hold it, the last of which ends after everything that it has started."""
        output, errors = self.process.communicate()
        self.output += output
        self.errors += errors
        return self.process.returncode

    def left(self) -> list[int]:
        """Processes that are alive and carry the mark."""
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._ours(pid)
        ]

    def _ours(self, pid: int) -> bool:
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # gone meanwhile


def run(*arguments: str, environment: dict[str, str] | None = None) -> Launched:
    """Runs the command to its end; nothing of it may be left."""
    with Launched(*arguments, environment=environment) as launched:
        launched.end()
        assert launched.left() == []
    return launched


def run_shell(workers: int, script: str) -> Launched:
    return run("run", "-n", str(workers), "sh", "-c", script)
