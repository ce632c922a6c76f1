"""A worker that waits for a rank that never comes: `waiting_worker.py init|call`.

Rank 0 prints "waiting" when its main thread waits in init() or in the call. Rank 1 prints "late",
and never joins or never makes the call.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch

import farandole.torch as hvd

WAIT_FUNCTIONS = {"init": ("lifecycle.py", "_join"), "call": ("handle.py", "_wait_for_outcome")}


def main(waits_in: str) -> None:
    is_late = os.environ["FARANDOLE_RANK"] == "1"
    sys.setswitchinterval(1000)  # the watcher runs only while the main thread waits
    if not is_late:
        threading.Thread(target=watch, args=WAIT_FUNCTIONS[waits_in], daemon=True).start()
    if is_late and waits_in == "init":
        wait_for_signal()
    hvd.init()
    if is_late:
        wait_for_signal()
    hvd.allreduce(torch.ones(10))


def wait_for_signal() -> None:
    print("late", flush=True)
    signal.pause()


def watch(file: str, function: str) -> None:
    while True:
        code = sys._current_frames()[threading.main_thread().ident].f_code
        if code.co_filename.endswith(file) and code.co_name == function:
            break
        time.sleep(0.001)
    print("waiting", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
