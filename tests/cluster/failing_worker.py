"""A worker of a job in which one fails: `failing_worker.py HOW CULPRIT`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import torch

import farandole.torch as hvd

STEPS_BEFORE = 100


def descriptors() -> set[str]:
    return {f"{fd.name} {os.readlink(fd)}" for fd in Path("/proc/self/fd").iterdir() if fd.exists()}


def segments() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line]


def fail(how: str) -> None:
    if how == "raise":
        raise ValueError("bad data")
    if how == "exit":
        sys.exit(0)
    if how == "_exit":
        os._exit(3)
    if how == "kill":  # in the middle of whatever the main thread does
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()


def main(how: str, culprit: int) -> None:
    before = descriptors()
    hvd.init()
    guilty = hvd.rank() == culprit
    step = 0
    try:
        while True:
            step += 1
            if guilty and step == STEPS_BEFORE:
                fail(how)
            hvd.allreduce_(torch.ones(200_000), name="loop")
    except hvd.GroupLostError as error:
        print(f"survivor {hvd.rank()}: {error}", flush=True)
        rank = hvd.rank()
        hvd.shutdown()
        print(f"left in {rank}: {sorted(descriptors() - before)} {segments()}", flush=True)
        raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
