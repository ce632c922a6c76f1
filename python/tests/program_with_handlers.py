"""A program with signal handlers and hooks of its own.

farandole must not change them, not even when it is only imported. (tests/cluster has a program that
also uses them.)
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from pathlib import Path


def facts() -> tuple[object, ...]:
    """Return Python's signal handlers and hooks, and the kernel's view of the signals."""
    status = Path("/proc/self/status").read_text().splitlines()
    return (
        [signal.getsignal(number) for number in signal.valid_signals()],
        [line for line in status if line.startswith(("SigCgt", "SigIgn", "SigBlk"))],
        (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        faulthandler.is_enabled(),
    )


threading.Thread(target=int).start()  # with the first thread, the C library handles signal 33
faulthandler.enable()
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
before = facts()

import farandole  # noqa: E402
from farandole import calls  # noqa: E402

for _ in range(3):
    farandole.init()
    calls.barrier()
    assert facts() == before
    farandole.shutdown()
    assert facts() == before
print("nothing was changed", flush=True)
