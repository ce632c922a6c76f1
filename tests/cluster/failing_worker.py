"""A worker of a job in which one worker fails: `failing_worker.py HOW FAILED_RANK`.

HOW is a method of `Failures`, which the rank FAILED_RANK calls at its 100th step. The other ranks
make calls until a call fails. Then they print which descriptors and shared-memory segments of the
job are left in their process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import farandole
from farandole import calls

STEPS_BEFORE = 100


def descriptors() -> set[str]:
    return {f"{fd.name} {os.readlink(fd)}" for fd in Path("/proc/self/fd").iterdir() if fd.exists()}


def segments() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line]


class Failures:
    """The ways in which a worker may fail."""

    @staticmethod
    def raise_error() -> None:
        raise ValueError("bad data")

    @staticmethod
    def exit_normally() -> None:
        sys.exit(0)

    @staticmethod
    def exit_at_once() -> None:
        os._exit(3)

    @staticmethod
    def kill_itself() -> None:  # while the main thread goes on
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()

    @staticmethod
    def crash() -> None:
        ctypes.string_at(0)

    @staticmethod
    def leave_job() -> None:
        farandole.shutdown()
        signal.pause()

    @staticmethod
    def eat_memory() -> None:
        blocks = []
        while True:
            blocks.append(bytearray(b"x" * 8_000_000))

    @staticmethod
    def stop_itself_before_a_kill() -> None:
        pid = os.getpid()
        if os.fork() == 0:
            while "(stopped)" not in Path(f"/proc/{pid}/status").read_text():
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
        os.kill(pid, signal.SIGSTOP)


def main(failure: str, failed_rank: int) -> None:
    descriptors_before = descriptors()
    farandole.init()
    rank = farandole.rank()
    if rank != failed_rank or failure == "exit_normally":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so we have 10 s to show our error, not 5 s
    step = 0
    try:
        while True:
            step += 1
            if step == STEPS_BEFORE:
                print(f"stepping, started by {os.getppid()}", flush=True)
            if rank == failed_rank and step == STEPS_BEFORE:
                getattr(Failures, failure)()
            calls.barrier()
    except farandole.GroupLostError as error:
        print(f"survivor {rank}: {error}", flush=True)
        farandole.shutdown()
        print(
            f"left in {rank}: {sorted(descriptors() - descriptors_before)} {segments()}", flush=True
        )
        raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
