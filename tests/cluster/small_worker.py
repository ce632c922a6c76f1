"""A worker that uses no framework, so it starts in a fraction of a second: `small_worker.py
ACTION`. ACTION is the name of a function in ACTIONS."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
from array import array
from contextlib import suppress
from pathlib import Path

import farandole
from farandole import core, lifecycle

if sys.argv[1:] == ["make_few_calls"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so we have 10 s to show our error, not 5 s


def wait_for(call: core.Call) -> int:
    engine = lifecycle.engine()
    engine.submit(call, True)
    engine.wait(call.handle)
    return call.handle


def view_of(values: array[float]) -> core.BufferView:
    address = values.buffer_info()[0]
    return core.BufferView(core.dtypes["float64"], (len(values),), address, address)


def allreduce(values: array[float], name: str = "values") -> None:
    call = core.allreduce(name, 0, view_of(values), core.reduce_ops["sum"], 1.0, 1.0)
    take(wait_for(call))


def take(number: int) -> None:
    engine = lifecycle.engine()
    try:
        engine.check_outcome(number)
    finally:
        engine.release(number)


def allgather(values: array[float]) -> bytes:
    view, engine = view_of(values), lifecycle.engine()
    number = wait_for(core.allgather("", 0, view))
    received, _ = engine.peek_received(number, view)
    engine.release(number)
    return bytes(received)


def numbers(count: int) -> array[float]:
    """Return numbers that differ by rank. The bits of their sum depend on the order in which the
    ranks are added."""
    rank = farandole.rank()
    return array("d", (0.1 * i * (rank + 1) for i in range(count)))


def make_few_calls() -> None:
    """Make calls of several kinds and a group, and print a digest of the results."""
    digest = hashlib.sha256()
    for count in (1, 1000, 100_000):
        values = numbers(count)
        allreduce(values)
        digest.update(values.tobytes())
    digest.update(allgather(numbers(500 * (farandole.rank() + 1))))
    engine = lifecycle.engine()
    group = engine.add_group([1])
    engine.remove_group(group)
    take(wait_for(core.barrier("", 0)))
    os.write(1, f"result {digest.hexdigest()}\n".encode())  # one write: all ranks use one pipe


def make_endless_calls() -> None:
    while True:
        allreduce(numbers(1000))
        if farandole.rank() == 0:
            print("step", flush=True)


def make_many_calls() -> None:
    """Make several hundred collectives and check all results."""
    size = farandole.size()
    for step in range(400):
        values = array("d", [float(farandole.rank() + step)]) * (1 + step * 37 % 5000)
        allreduce(values)
        expected = size * step + size * (size - 1) / 2
        assert set(values) == {expected}, (step, values[0], expected)
    print("all 400 right", flush=True)


def take_all_descriptors() -> list[int]:
    taken_descriptors = []
    with suppress(OSError):
        while True:
            taken_descriptors.append(os.dup(2))
    return taken_descriptors


def use_up_descriptors() -> None:
    """Use up all descriptors on rank 1, go on with collectives, and try to add groups."""
    engine = lifecycle.engine()
    taken_descriptors = take_all_descriptors() if farandole.rank() == 1 else []
    for _ in range(20):
        allreduce(numbers(1000))
    for ranks in ([0, 1], [1]):  # rank 1 has no descriptor for rank 0's memory or its own
        try:
            engine.add_group(ranks)
        except farandole.FarandoleError as error:
            print(f"reported: {error}", flush=True)
    allreduce(numbers(10))
    for descriptor in taken_descriptors:
        os.close(descriptor)
    group = engine.add_group([1])
    engine.remove_group(group)
    print("went on", flush=True)


def make_calls_under_signals() -> None:
    """Make collectives while a signal handler interrupts system calls all the time."""
    signals_received = 0

    def count(*_: object) -> None:
        nonlocal signals_received
        signals_received += 1

    signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    make_many_calls()
    make_few_calls()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert signals_received > 10, signals_received
    print("survived all signals", flush=True)


def gather_too_much() -> None:
    """Make an allgather whose result does not fit into the memory of one rank."""
    if farandole.rank() == 1:
        pages = Path("/proc/self/statm").read_text().split()[0]
        used_bytes = int(pages) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + 64 * 2**20,) * 2)
    part = array("d", [1.0]) * 8_000_000  # each rank gives 64 MB
    view = view_of(part)
    number = wait_for(core.allgather("big", 0, view))
    try:
        received, rows = lifecycle.engine().peek_received(number, view)
        print(f"received {rows}", flush=True)
        del received
    except farandole.FarandoleError as error:
        print(f"reported: {error}", flush=True)
    values = array("d", [1.0])
    allreduce(values)
    print(f"went on {values[0]}", flush=True)


def touch_shared_memory() -> None:
    """Touch as much shared memory as a large collective does."""
    print("joined", flush=True)
    part = array("d", [1.0]) * 4_000_000
    for _ in range(3):
        allreduce(part)
    print("done", flush=True)


ACTIONS = (
    make_few_calls,
    make_endless_calls,
    make_many_calls,
    use_up_descriptors,
    make_calls_under_signals,
    gather_too_much,
    touch_shared_memory,
)


def main(action: str) -> None:
    farandole.init()
    {function.__name__: function for function in ACTIONS}[action]()
    farandole.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
