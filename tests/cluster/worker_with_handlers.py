"""A worker whose program has its own signal handlers, signal masks and child processes.

The engine must not change any of them, and must work with all of them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

import torch

import farandole.torch as hvd

caught_signals: list[int] = []


def process_settings() -> tuple[object, ...]:
    """Return settings of the process that a library might change without notice."""
    libc = ctypes.CDLL(None)
    actions = []
    for number in range(1, signal.NSIG):
        action = ctypes.create_string_buffer(256)
        libc.sigaction(number, None, action)
        # Compare the handler, the flags, and the part of the mask that the kernel uses. glibc does
        # not initialize the rest of the mask.
        actions.append((action.raw[:16], action.raw[136:140]))
    umask = os.umask(0o077)
    os.umask(umask)
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    return actions, umask, mask, os.getcwd(), os.environ.copy()


def run_steps(count: int) -> None:
    for step in range(count):
        values = torch.full((1000,), float(hvd.rank() + step))
        hvd.allreduce_(values, op=hvd.Sum, name="values")
        size = hvd.size()
        assert values.eq(size * step + size * (size - 1) / 2).all(), values


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return index * index


def square(number: int) -> int:
    return number * number


def create_children() -> None:
    """Create child processes in several ways, with collectives in between."""
    assert subprocess.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    run_steps(3)
    pid = os.fork()
    if pid == 0:
        try:
            hvd.allreduce(torch.ones(1))
        except hvd.FarandoleError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    run_steps(3)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
        run_steps(3)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2)
    total = 0
    for batch in loader:
        total += int(batch.sum())
        run_steps(2)
    assert total == sum(i * i for i in range(32))


def set_handlers_and_masks() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)
    signal.signal(signal.SIGCHLD, lambda number, _: caught_signals.append(number))
    signal.signal(signal.SIGUSR1, lambda number, _: caught_signals.append(number))
    signal.signal(signal.SIGALRM, lambda number, _: caught_signals.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGQUIT})
    os.umask(0o123)
    os.chdir(tempfile.gettempdir())
    os.close(0)
    for name in os.listdir("/proc/self/fd"):  # as programs that start daemons do
        if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
            os.set_inheritable(int(name), True)


def check_engine_threads_block_signals() -> None:
    """Check that signals are handled on the program's threads, not on those of the engine."""
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
        if lines["Name"].startswith("farandole"):
            blocked_signals = int(lines["SigBlk"], 16)
            assert blocked_signals >> (signal.SIGALRM - 1) & 1, lines["Name"]


def main() -> None:
    set_handlers_and_masks()
    settings_before = process_settings()
    hvd.init()
    os.kill(os.getpid(), signal.SIGUSR1)
    run_steps(20)
    check_engine_threads_block_signals()
    assert process_settings() == settings_before, "something was changed after init()"
    create_children()
    os.close(1)
    settings_before = process_settings()  # a DataLoader has a handler of its own
    run_steps(3)
    hvd.shutdown()
    assert process_settings() == settings_before, "shutdown() has changed something"
    assert {signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD} <= set(caught_signals), caught_signals
    hvd.init()  # descriptors 0 and 1 are free: the engine may get these numbers
    run_steps(3)
    hvd.shutdown()
    signal.setitimer(signal.ITIMER_REAL, 0)  # Python removes its handlers when it ends
    print("nothing was changed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
