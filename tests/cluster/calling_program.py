"""A program that calls a function as a job: `calling_program.py run|launch [stubborn] [forks]`.

The function prints "working" and does not end by itself; with `stubborn` it also ignores signals.
With `launch`, the output of the workers is not shown, so the program itself prints "working" when
all workers have printed it. With `forks`, the program also has a child that holds all its
descriptors.
"""

from __future__ import annotations

import os
import signal
import sys

import farandole


def work(ignores_signals: bool) -> None:
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if ignores_signals else ()
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    print("working", flush=True)
    while True:
        signal.pause()


def fork() -> None:
    """Fork a child that holds all descriptors until the end of the test kills it."""
    if os.fork() == 0:
        print("child", os.getpid(), flush=True)
        while True:
            signal.pause()


def main(action: str, *options: str) -> None:
    ignores_signals = "stubborn" in options
    if action == "run":
        farandole.run(work, (ignores_signals,), n=2)
    workers = farandole.launch_workers(2, work, (ignores_signals,))
    if "forks" in options:
        fork()
    while not all("working" in worker.stdout for worker in workers):
        farandole.await_workers(workers, timeout=0.01)
    print("working\nworking", flush=True)
    farandole.await_workers(workers)


if __name__ == "__main__":
    main(*sys.argv[1:])
