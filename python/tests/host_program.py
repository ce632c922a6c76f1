"""A program with signal handlers and hooks of its own, which farandole must leave alone."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

children = 0


def count_children(*_: object) -> None:
    global children  # noqa: PLW0603
    children += 1


def facts() -> tuple[object, ...]:
    """The handlers and hooks of Python, and those of the system behind them."""
    status = Path("/proc/self/status").read_text().splitlines()
    return (
        [signal.getsignal(number) for number in signal.valid_signals()],
        [line for line in status if line.startswith(("SigCgt", "SigIgn", "SigBlk"))],
        (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        faulthandler.is_enabled(),
    )


threading.Thread(target=int).start()  # with its first thread the C library takes signal 33
faulthandler.enable()
signal.signal(signal.SIGCHLD, count_children)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
before = facts()

import farandole  # noqa: E402
from farandole import calls  # noqa: E402

for life in range(3):
    farandole.init()
    calls.barrier()
    assert facts() == before
    assert subprocess.run(["true"], check=True).returncode == 0
    assert children == life + 1
    assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3
    children = life + 1
    farandole.shutdown()
    assert facts() == before
print("nothing was changed", flush=True)
