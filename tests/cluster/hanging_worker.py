"""A worker of a job with a mistake: `hanging_worker.py HOW`.

Most of these mistakes make the job hang, also with Horovod. HOW is the name of a function below.
In most of these functions, rank 1 makes the mistake.
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


def takes_another_branch() -> None:
    """Only rank 0 evaluates, although its metric needs a call of all ranks."""
    train()
    if farandole.rank() == 0:
        allreduce("metric")
    train()


def calls_in_another_order() -> None:
    train()
    for name in ("ab", "ba")[farandole.rank() == 1]:
        allreduce(name)


def starts_in_another_order_and_waits_later() -> None:
    """This does not hang: asynchronous calls may come in any order."""
    train()
    names = ("ab", "ba")[farandole.rank() == 1]
    for handle in [allreduce_async(name) for name in names]:
        handle.wait()
    print("went well", flush=True)


def take_time_for_errors() -> None:
    """Ignore SIGTERM, so that this rank has 7 s instead of 2 s to show its own error."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def raises() -> None:
    take_time_for_errors()
    train()
    if farandole.rank() == 1:
        raise ValueError("no label for image 4711")
    train()


def evaluate() -> None:
    time.sleep(1000)  # the line that the launcher shows


def sleeps() -> None:
    train()
    if farandole.rank() == 1:
        evaluate()
    train()


def runs_out_of_batches() -> None:
    take_time_for_errors()
    train(STEPS if farandole.rank() == 1 else STEPS + 1)


def joins_while_others_broadcast() -> None:
    train()
    if farandole.rank() == 1:
        calls.join()
    if farandole.rank() == 2:
        evaluate()
    broadcast("sizes")


def holds_a_lock() -> None:
    train()
    if farandole.rank() == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # the line that the launcher shows
    train()


def stays_in_c() -> None:
    """Sleep with the interpreter's lock held, so that no Python thread of this process can run."""
    train()
    if farandole.rank() == 1:
        ctypes.PyDLL(None).sleep(1000)  # the line that the launcher shows
    train()


def crosses_groups() -> None:
    """Rank 0 makes a call of the pair's group while rank 1 makes a call of all ranks."""
    pair = farandole.add_process_set([0, 1])
    train()
    if farandole.rank() == 0:
        allreduce("of the pair", pair)
    allreduce("of all")


def computes_meanwhile() -> None:
    """Rank 0 has started calls that wait for rank 1, and computes; rank 1 sleeps."""
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
