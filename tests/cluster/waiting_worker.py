"""A worker that waits for one that never comes: `waiting_worker.py init|call`."""

from __future__ import annotations

import os
import sys
import time

import torch

import farandole.torch as hvd


def main(where: str) -> None:
    late = os.environ["FARANDOLE_RANK"] == "1"
    if where == "init":
        wait(late)
    hvd.init()
    wait(late)
    hvd.allreduce(torch.ones(10))


def wait(late: bool) -> None:
    print("waiting", flush=True)
    if late:
        time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1])
