"""A worker of a job with a mistake: `hanging_worker.py HOW`.

HOW is the name of a function below. Most of these functions contain a mistake, usually of rank 1.
The mistake makes the job hang, as it would with Horovod.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from array import array

import farandole
from farandole import calls, core
from farandole.group import Group, global_process_set
from farandole.handle import Handle, PreparedCall

STEPS = 3


def allreduce_async(name: str, group: Group = global_process_set) -> Handle[None]:
    values = array("d", [1.0] * 100)
    address = values.buffer_info()[0]
    view = core.BufferView(core.dtypes["float64"], (100,), address, address)
    number = group.process_set_id
    assert number is not None
    call = core.allreduce(name, number, view, core.reduce_ops["sum"], 1.0, 1.0)
    return calls.start(PreparedCall(call, values, core.Engine.check_outcome))


def allreduce(name: str, group: Group = global_process_set) -> None:
    allreduce_async(name, group).wait()


def broadcast(name: str) -> None:
    values = array("d", [1.0])
    address = values.buffer_info()[0]
    view = core.BufferView(core.dtypes["float64"], (1,), address, address)
    calls.start(
        PreparedCall(core.broadcast(name, 0, view, 0), values, core.Engine.check_outcome)
    ).wait()


def train(steps: int = STEPS) -> None:
    for _ in range(steps):
        allreduce("grad")


def take_another_branch() -> None:
    """Only rank 0 evaluates, although its metric needs a call of all ranks."""
    train()
    if farandole.rank() == 0:
        allreduce("metric")
    train()


def call_in_another_order() -> None:
    train()
    for name in ("ab", "ba")[farandole.rank() == 1]:
        allreduce(name)


def start_in_another_order_and_wait_later() -> None:
    """This job does not hang: the ranks may start asynchronous calls in different orders."""
    train()
    names = ("ab", "ba")[farandole.rank() == 1]
    for handle in [allreduce_async(name) for name in names]:
        handle.wait()
    print("went well", flush=True)


def take_time_for_errors() -> None:
    """Ignore SIGTERM, so that this rank has 10 s instead of 5 s to show its own error."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def raise_error() -> None:
    take_time_for_errors()
    train()
    if farandole.rank() == 1:
        raise ValueError("no label for image 4711")
    train()


def evaluate() -> None:
    time.sleep(1000)  # the line that the launcher shows


def sleep_too_long() -> None:
    train()
    if farandole.rank() == 1:
        evaluate()
    train()


def run_out_of_batches() -> None:
    take_time_for_errors()
    train(STEPS if farandole.rank() == 1 else STEPS + 1)


def join_while_others_broadcast() -> None:
    train()
    if farandole.rank() == 1:
        calls.join()
    if farandole.rank() == 2:
        evaluate()
    broadcast("sizes")


def hold_a_lock() -> None:
    train()
    if farandole.rank() == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # the line that the launcher shows
    train()


def stay_in_c() -> None:
    """Sleep in a C function that keeps the GIL, so that no Python thread of this process can
    run."""
    train()
    if farandole.rank() == 1:
        ctypes.PyDLL(None).sleep(1000)  # the line that the launcher shows
    train()


def cross_groups() -> None:
    """Rank 0 makes a call in the group of the ranks 0 and 1, but rank 1 makes a call of all
    ranks."""
    pair = farandole.add_process_set([0, 1])
    train()
    if farandole.rank() == 0:
        allreduce("of the pair", pair)
    allreduce("of all")


def compute_meanwhile() -> None:
    """Rank 0 starts calls and then computes. The calls wait for rank 1, which sleeps."""
    train()
    if farandole.rank() == 1:
        evaluate()
    handle = allreduce_async("grad")
    if farandole.rank() == 0:
        time.sleep(1000)
    handle.wait()


if __name__ == "__main__":
    farandole.init()
    globals()[sys.argv[1]]()
