"""A training that ends after the step in which a rank has received SIGTERM, and says which step."""

from __future__ import annotations

import os
from array import array

from small_worker import allreduce

import farandole

STEPS = 1_000_000


def main() -> None:
    farandole.init()
    with farandole.PreemptionNotice() as notice:
        for step in range(STEPS):
            allreduce(array("d", [1.0]) * 10)
            if step == 0:
                os.write(1, f"trains as {os.getpid()}\n".encode())
            if notice.received():
                os.write(1, f"ends after step {step}\n".encode())
                break


if __name__ == "__main__":
    main()
