"""A training whose ranks all end after the same step, soon after one of them has received SIGTERM.
Each rank prints the number of this step. With `slow` as argument, rank 1 is late in each step, so
the other ranks wait for it in received()."""

from __future__ import annotations

import os
import sys
import time
from array import array

from small_worker import allreduce

import farandole

STEPS = 1_000_000


def main() -> None:
    farandole.init()
    with farandole.PreemptionNotice() as notice:
        for step in range(STEPS):
            allreduce(array("d", [1.0]) * 10)
            if sys.argv[1:] == ["slow"] and farandole.rank() == 1:
                time.sleep(0.5)
            if step == 0:
                os.write(1, f"trains as {os.getpid()}\n".encode())
            if notice.received():
                os.write(1, f"ends after step {step}\n".encode())
                break


if __name__ == "__main__":
    main()
