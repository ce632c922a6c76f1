"""A worker of a job of two. Rank 0 forks in many states of its engine.

The children call farandole, end, or run another program. None of this may affect rank 0. This
program needs no framework.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import farandole
from farandole import calls, core
from farandole.handle import PreparedCall
from farandole.objects import broadcast_object

FORKED_ERROR = "called in a forked child"
ready_file = Path(sys.argv[1])  # rank 0 creates this file when rank 1 may call init()


def start_barrier(name: str) -> calls.Handle[None]:
    return calls.start(PreparedCall(core.barrier(name, 0), None, core.Engine.check_outcome))


def expect(text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except farandole.FarandoleError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error with {text!r}")


def run_in_child(*functions: Callable[[], object]) -> None:
    """Fork a child that calls the functions, and then ends with Python's exit handlers."""
    child = os.fork()
    if child == 0:
        try:
            for action in functions:
                action()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


def run_another_program() -> None:
    """Replace this child by a program. The program inherits our environment, but must not become a
    member of the job."""
    program = "import farandole; farandole.init()"
    os.execv(sys.executable, [sys.executable, "-c", program])


def expect_all_rejected() -> None:
    expect(FORKED_ERROR, farandole.init)
    expect(FORKED_ERROR, calls.barrier)
    expect(FORKED_ERROR, lambda: farandole.add_process_set([0]))
    expect(FORKED_ERROR, lambda: broadcast_object(1))
    farandole.shutdown()


def fork_while_others_wait() -> None:
    handles = [start_barrier(f"late.{i}") for i in range(4)]
    threads = [threading.Thread(target=handle.wait) for handle in handles]
    for thread in threads:
        thread.start()
    for _ in range(10):
        run_in_child(expect_all_rejected, lambda: expect(FORKED_ERROR, handles[0].wait))
    calls.barrier()
    for thread in threads:
        thread.join()


def fork_while_joining() -> None:
    thread = threading.Thread(target=farandole.init)
    thread.start()
    while not farandole.lifecycle._process.is_joining:
        time.sleep(0.001)
    run_in_child(
        lambda: expect(FORKED_ERROR, farandole.init), lambda: expect("not init", farandole.rank)
    )
    ready_file.touch()
    thread.join()


def fork_and_run_another_program() -> None:
    child = os.fork()
    if child == 0:
        run_another_program()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


if os.environ["FARANDOLE_RANK"] == "0":
    fork_while_joining()
    run_in_child(expect_all_rejected)
    run_in_child(lambda: run_in_child(expect_all_rejected))  # a child of the child
    run_in_child(lambda: os._exit(0))
    fork_while_others_wait()
    fork_and_run_another_program()
else:
    while not ready_file.exists():
        time.sleep(0.01)
    farandole.init()
    calls.barrier()
    for i in range(4):
        start_barrier(f"late.{i}").wait()
calls.barrier()
farandole.shutdown()
if os.environ["FARANDOLE_RANK"] == "0":
    run_in_child(lambda: expect("not initialized", farandole.rank), farandole.shutdown)
farandole.init()
calls.barrier()
print("the parent works", flush=True)
