"""A worker of a job of two. Rank 1 leaves in the way that the argument names, with calls in flight.

Rank 0 waits for one of the calls and prints its error. This program needs no framework.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import NoReturn

import farandole
from farandole import calls, core
from farandole.handle import Handle, PreparedCall


def start_barrier(name: str) -> Handle[None]:
    return calls.start(PreparedCall(core.barrier(name, 0), None, core.Engine.check_outcome))


def interrupt_soon(*delays: float) -> None:
    """Send SIGINT to this process from outside, as a user's terminal does."""
    kills = [f"sleep {delay}; kill -INT {os.getpid()}" for delay in delays]
    subprocess.Popen(["sh", "-c", ";".join(kills)])


def wait_in_daemon_threads() -> None:
    def work() -> None:
        while True:
            started.release()
            start_barrier("").wait()

    started = threading.Semaphore(0)
    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(8):
        started.acquire()


def leave_in_a_handler() -> None:
    def handler(*_: object) -> None:
        farandole.shutdown()

    signal.signal(signal.SIGINT, handler)
    interrupt_soon(0.3)
    try:
        pending_barrier.wait()
    except farandole.GroupLostError as error:
        print(f"raised: {error}", flush=True)
    farandole.shutdown()


def leave_while_adding_a_group() -> None:
    interrupt_soon(0.3)
    farandole.add_process_set([0])


def raise_in_a_wait() -> NoReturn:
    def handler(*_: object) -> None:
        sys.exit(7)

    signal.signal(signal.SIGINT, handler)
    interrupt_soon(0.3)
    pending_barrier.wait()
    raise AssertionError("the wait ended")


class TextlessError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class NamelessClass(type):
    @property
    def __name__(cls) -> str:
        raise LookupError("no name")


class NamelessError(Exception, metaclass=NamelessClass):
    pass


def raise_error(error: Exception) -> NoReturn:
    raise error


def wait_until_interrupted(*delays: float) -> None:
    interrupt_soon(*delays)
    pending_barrier.wait()


LEAVE_FUNCTIONS = {
    "end": lambda: None,
    "exit": lambda: sys.exit(5),
    "_exit": lambda: os._exit(6),
    "exception": lambda: raise_error(ValueError("no data")),
    "surrogate": lambda: raise_error(ValueError("cannot read " + os.fsdecode(b"\xff.png"))),
    "speechless": lambda: raise_error(TextlessError()),
    "nameless": lambda: raise_error(NamelessError()),
    "interrupt": lambda: wait_until_interrupted(0.3),
    "interrupt twice": lambda: wait_until_interrupted(0.3, 0.02),
    "interrupted add": leave_while_adding_a_group,
    "exit in a handler": raise_in_a_wait,
    "shutdown in a handler": leave_in_a_handler,
    "daemon threads": wait_in_daemon_threads,
}

if os.environ["FARANDOLE_RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that this rank has time to print its error
farandole.init()
if farandole.rank() == 1:
    pending_barrier = start_barrier("never")
    start_barrier("dropped")
    LEAVE_FUNCTIONS[sys.argv[1]]()
else:
    try:
        start_barrier("other").wait()
    except farandole.GroupLostError as error:
        print(f"survivor: {error}", flush=True)
