"""A worker that joins and leaves its job many times: `cycling_worker.py FOLDER CYCLES`.

Every tenth cycle fails on purpose, in a different way each time. The worker prints which resources
it and its launcher use after the first ten cycles, after the first hundred, and at the end.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import farandole
from farandole import CallError, FarandoleError, Group, GroupLostError, calls, core
from farandole.handle import Handle, PreparedCall

RANK = int(os.environ["FARANDOLE_RANK"])
COUNT = 20_000
TRIES = 10
# The alarm comes after this time, when init() has probably begun. If the alarm interrupts another
# function, the cycle goes on in the same way.
ALARM_SECONDS = 0.02
PF_EXITING = 4
# How many descriptors are left free. The numbers differ, so that init() fails at different places.
spare_descriptors = itertools.cycle(range(4))


class InterruptedWait(Exception):  # noqa: N818 - not an error
    """Raised by the handler of a signal."""


def start_sum(name: str, dtype: str = "float32") -> Handle[None]:
    memory = (ctypes.c_float * (2 * COUNT))(*[RANK + 1.0] * 3)
    address = ctypes.addressof(memory)
    buffer = core.BufferView(core.dtypes[dtype], (COUNT,), address, address)
    call = core.allreduce(name, 0, buffer, core.reduce_ops["sum"], 1.0, 1.0)
    return calls.start(PreparedCall(call, memory, core.Engine.check_outcome))


def expect(
    error_type: type[BaseException], action: Callable[..., object], *arguments: object
) -> None:
    try:
        action(*arguments)
    except error_type:
        return
    raise AssertionError(f"{action} did not raise {error_type.__name__}")


def expect_no_init(groups: list[Group], kind: type[FarandoleError] = FarandoleError) -> None:
    expect(kind, lambda: farandole.init(process_sets=groups))
    assert not farandole.is_initialized()


def init_until_all_meet() -> None:
    """Repeat init() until all ranks have joined the same job. At first, some ranks may be one
    attempt behind the others, because their failed attempts ended at different points."""
    for _ in range(TRIES):
        try:
            farandole.init()
            calls.barrier()
        except FarandoleError:
            farandole.shutdown()
        else:
            return
    raise AssertionError(f"the ranks did not meet in {TRIES} tries")


def interrupt_by_alarm(action: Callable[[], object]) -> None:
    """On rank 0, run an action that never ends, and interrupt it by a signal. Rank 1 waits until
    this has happened."""
    fifo = Path(sys.argv[1]) / "interrupted"
    if RANK != 0:
        fifo.read_bytes()
        return

    def interrupt() -> None:
        signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
        action()

    expect(InterruptedWait, interrupt)
    fifo.write_bytes(b"")


def raise_interrupted(*_: object) -> None:
    raise InterruptedWait


def init_with_different_groups() -> None:
    expect_no_init([Group([RANK])])


def init_with_groups_on_one_rank() -> None:
    expect_no_init([Group([0])] if RANK == 0 else [])


def init_with_wrong_groups_on_one_rank() -> None:
    expect_no_init([Group([0]), Group([7])] if RANK == 1 else [])


def init_with_wrong_groups() -> None:
    expect_no_init([Group([0, 7])], CallError)


def init_with_wrong_knob_on_one_rank() -> None:
    if RANK == 1:
        size = os.environ["FARANDOLE_SIZE"]
        os.environ["FARANDOLE_SIZE"] = "many"
        expect_no_init([], CallError)
        os.environ["FARANDOLE_SIZE"] = size
    farandole.init()
    calls.barrier()


def init_with_different_knobs() -> None:
    os.environ["FARANDOLE_BUCKET_BYTES"] = str((RANK + 1) << 20)
    expect_no_init([])
    del os.environ["FARANDOLE_BUCKET_BYTES"]


def init_with_too_few_descriptors() -> None:
    if RANK == 1:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used_descriptors = set(map(int, os.listdir("/proc/self/fd")))
        free_descriptors = [
            number for number in range(len(used_descriptors) + 20) if number not in used_descriptors
        ]
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (free_descriptors[next(spare_descriptors)], limits[1])
        )
        expect_no_init([])
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    init_until_all_meet()


def interrupt_in_init() -> None:
    interrupt_by_alarm(farandole.init)
    init_until_all_meet()


def interrupt_in_a_call() -> None:
    farandole.init()
    interrupt_by_alarm(start_sum("interrupted").wait if RANK == 0 else lambda: None)


def make_different_calls() -> None:
    farandole.init()
    expect(CallError, start_sum("differs", ("float32", "float64")[RANK]).wait)
    calls.barrier()


def leave_with_calls_in_flight() -> None:
    farandole.init()
    handle = start_sum(f"only on rank {RANK}")
    calls.barrier()
    farandole.shutdown()
    expect(GroupLostError, handle.wait)


def drop_calls_and_leave() -> None:
    farandole.init()
    start_sum("on both")
    start_sum(f"only on rank {RANK}")
    calls.barrier()


def shutdown_while_the_other_waits() -> None:
    farandole.init()
    if RANK == 1:
        expect(GroupLostError, lambda: start_sum("waits").wait())


def add_rejected_groups() -> None:
    farandole.init()
    expect(CallError, farandole.add_process_set, [RANK])
    expect(CallError, farandole.add_process_set, [0, 1])
    process_set = farandole.add_process_set([1])
    expect(CallError, farandole.add_process_set, [1])
    assert process_set.included() == (RANK == 1)


FAILURES = (
    init_with_different_groups,
    init_with_groups_on_one_rank,
    init_with_wrong_groups_on_one_rank,
    init_with_wrong_groups,
    init_with_wrong_knob_on_one_rank,
    init_with_different_knobs,
    init_with_too_few_descriptors,
    interrupt_in_init,
    interrupt_in_a_call,
    make_different_calls,
    leave_with_calls_in_flight,
    drop_calls_and_leave,
    shutdown_while_the_other_waits,
    add_rejected_groups,
)


def work() -> None:
    handle = start_sum("sum")
    handle.wait()
    calls.barrier()


def descriptors(process: int | str) -> list[str]:
    """List the open files of a process, without numbers that change in each cycle."""
    names = []
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            names.append(re.sub(r"\d+", "N", os.readlink(entry)))
        except FileNotFoundError:
            continue  # the descriptor with which iterdir reads the folder
    return sorted(names)


def fewest_descriptors(process: int) -> list[str]:
    """List the files that another process keeps open. Leave out files that this process opens only
    for a moment."""
    samples = []
    for _ in range(50):
        samples.append(descriptors(process))
        time.sleep(0.02)
    return min(samples, key=len)


def launcher_descriptors() -> dict[str, list[str]]:
    """List the launcher's descriptors, while all ranks are in the job and the launcher is idle."""
    agent = os.getppid()
    foreground = int(Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return {"agent": fewest_descriptors(agent), "foreground": fewest_descriptors(foreground)}


def living_threads() -> list[Path]:
    """List the threads of this process. A thread that was joined may still be ending."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may have ended
            flags = int((task / "stat").read_text().rpartition(")")[2].split()[6])
            if not flags & PF_EXITING:
                threads.append(task)
    return threads


def resources() -> dict[str, object]:
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    names = collections.Counter(fields[5] if len(fields) > 5 else "anonymous" for fields in maps)
    tasks = living_threads()
    children = "".join((task / "children").read_text() for task in tasks)
    return {
        "descriptors": descriptors("self"),
        "threads": len(tasks),
        "children": children.split(),
        "maps": dict(sorted(names.items())),
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(cycles: int) -> None:
    signal.signal(signal.SIGALRM, raise_interrupted)
    for number in range(1, cycles + 1):
        is_reported = number in (10, 100, cycles)
        launchers = None
        if number % 10 == 5:
            FAILURES[number // 10 % len(FAILURES)]()
        else:
            farandole.init()
            work()
            launchers = launcher_descriptors() if is_reported else None
            calls.barrier()
        farandole.shutdown()
        if is_reported:
            state: dict[str, object] = {"cycle": number, "rank": RANK, "resident": resident_bytes()}
            state |= {"resources": resources(), "launcher": launchers}
            print(json.dumps(state), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[2]))
