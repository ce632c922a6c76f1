"""A program with signal handlers and hooks of its own.

A program that imports farandole must keep its handlers and hooks. This program only imports it.
(tests/cluster/worker_with_handlers.py also makes calls.)
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from pathlib import Path


def handlers_and_hooks() -> tuple[object, ...]:
    """Return Python's signal handlers and hooks, and which signals the kernel says are caught,
    blocked or ignored."""
    status = Path("/proc/self/status").read_text().splitlines()
    return (
        [signal.getsignal(number) for number in signal.valid_signals()],
        [line for line in status if line.startswith(("SigCgt", "SigIgn", "SigBlk"))],
        (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        faulthandler.is_enabled(),
    )


threading.Thread(target=int).start()  # so that the C library sets its handler of signal 33
faulthandler.enable()
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
handlers_before = handlers_and_hooks()

import farandole  # noqa: E402
from farandole import calls  # noqa: E402

for _ in range(3):
    farandole.init()
    calls.barrier()
    assert handlers_and_hooks() == handlers_before
    farandole.shutdown()
    assert handlers_and_hooks() == handlers_before
print("nothing was changed", flush=True)
