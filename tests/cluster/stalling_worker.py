"""A worker of a job in which rank 1 makes the other ranks wait: `stalling_worker.py HOW FOLDER`.

HOW is the name of a function below. Rank 1 goes on when the file `go` is in FOLDER, and all ranks
end when the file `end` is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import farandole
from farandole import calls, core
from farandole.handle import PreparedCall

RANK = int(os.environ["FARANDOLE_RANK"])
if sys.argv[1].startswith("end_"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so we have 10 s to show our error, not 5 s


def wait_for(file: Path) -> None:
    print(f"waits for {file.name}", flush=True)
    while not file.exists():
        time.sleep(0.01)


def come_late(folder: Path) -> None:
    farandole.init()
    calls.barrier()
    if RANK == 1:
        wait_for(folder / "go")
    calls.barrier()


def choose_the_time(folder: Path) -> None:
    os.environ.pop("HOROVOD_STALL_CHECK_DISABLE", None)
    os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "1"
    come_late(folder)


def come_late_to_init(folder: Path) -> None:
    if RANK == 1:
        wait_for(folder / "go")
    farandole.init()


def keep_a_group_waiting(folder: Path) -> None:
    pair = farandole.ProcessSet([0, 1])
    farandole.init(process_sets=[pair])
    if RANK == 1:
        wait_for(folder / "go")
    if RANK < 2:
        calls.barrier(pair)


def join_late(folder: Path) -> None:
    farandole.init()
    if RANK == 1:
        wait_for(folder / "go")
    calls.join()


def wait_elsewhere(folder: Path) -> None:
    farandole.init()
    call = core.barrier("ab"[RANK], 0)
    calls.start(PreparedCall(call, None, core.Engine.check_outcome)).wait()


def run_until_go(folder: Path) -> None:
    """Only rank 0 looks for `go` and makes `stop`, so all ranks end after the same barrier."""
    farandole.init()
    print("running", flush=True)
    while not (folder / "stop").exists():
        calls.barrier()
        if RANK == 0 and (folder / "go").exists():
            (folder / "stop").touch()
        calls.barrier()


def end_before_init(folder: Path) -> None:
    if RANK == 1:
        for rank in (0, 2):
            wait_for(folder / f"begun.{rank}")
        sys.exit(0)
    (folder / f"begun.{RANK}").touch()
    init_and_print_error()


def end_during_init(folder: Path) -> None:
    """Rank 2 comes after rank 0 has got its error."""
    if RANK == 2:
        wait_for(folder / "go")
    init_and_print_error()


def init_and_print_error() -> None:
    try:
        farandole.init()
    except farandole.FarandoleError as error:
        print(f"survivor {RANK}: {error}", flush=True)
        Path(sys.argv[2], "go").touch()
        raise


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
    wait_for(Path(sys.argv[2]) / "end")
