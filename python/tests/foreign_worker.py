"""A rank that another launcher or the user starts, without `farandole run`.

The argument says what the rank does. `cycle`: it joins and leaves the job many times. `die`: rank 1
kills itself, and the other ranks print the error of their call. `leave`: the rank joins the job and
ends. `fail once`: rank 1 fails, unless torchrun has started the job again.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import farandole.torch as hvd

CYCLES = 50


def cycle() -> None:
    for number in range(CYCLES):
        hvd.init()
        if number % 10 == hvd.rank():
            time.sleep(0.01)  # so this rank is late
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
        if number == 0:
            group = hvd.add_process_set([0, hvd.size() - 1])
            assert group.size() == 2
        hvd.shutdown()
    hvd.init()
    print(f"rank {hvd.rank()} of {hvd.local_size()} is done\n", end="", flush=True)


def die() -> None:
    hvd.init()
    # Submit this call before rank 1 dies, because a call after the death would get another error.
    unmatched_call = None if hvd.rank() == 1 else hvd.allreduce_async(torch.ones(1), name="never")
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert unmatched_call is not None
    try:
        hvd.synchronize(unmatched_call)
    except hvd.GroupLostError as error:
        print(f"raised: {error}\n", end="", flush=True)


def fail_once() -> None:
    hvd.init()
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if restarts == "0" and hvd.rank() == 1:
        sys.exit(3)
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    print(f"restart {restarts}: rank {hvd.rank()} has {total}\n", end="", flush=True)


if __name__ == "__main__":
    {"cycle": cycle, "die": die, "leave": hvd.init, "fail once": fail_once}[sys.argv[1]]()
