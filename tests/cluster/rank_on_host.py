"""A rank that is started without `farandole run`. It joins the job several times, and prints its
rank, local rank and cross rank. `rank_on_host.py die R`: rank R kills itself in a call of the
others. `rank_on_host.py late R FILE`: rank R makes its calls only when the file exists."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from small_worker import make_few_calls, take, wait_for

import farandole
from farandole import core

CYCLES = 3


def print_line(text: str) -> None:
    # Write the line by one call, because several ranks may write to one pipe.
    os.write(1, f"{text}\n".encode())


def main(*arguments: str) -> None:
    for life in range(CYCLES):
        farandole.init()
        rank, size = farandole.rank(), farandole.size()
        local_place = f"{farandole.local_rank()}/{farandole.local_size()}"
        cross_place = f"{farandole.cross_rank()}/{farandole.cross_size()}"
        print_line(f"life {life}: rank {rank} of {size}, local {local_place}, cross {cross_place}")
        if arguments[:1] == ("die",):
            take(wait_for(core.barrier("", 0)))  # all ranks have joined
        if arguments == ("die", str(rank)):
            os.kill(os.getpid(), signal.SIGKILL)
        if arguments[:2] == ("late", str(rank)):
            while not Path(arguments[2]).exists():
                time.sleep(0.05)
        make_few_calls()
        farandole.shutdown()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except farandole.FarandoleError as error:
        print_line(f"{type(error).__name__}: {error}")
        sys.exit(1)
