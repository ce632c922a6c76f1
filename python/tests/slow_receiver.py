"""Sends large tensors from one host to another, while a rank of the receiving host is often
stopped.

Run it on two hosts with two workers each. Another rank of the second host stops and continues the
last rank.
"""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
from numpy_frontend import make_api

ROWS, PAUSE_S = 24 << 20, 0.2  # 96 MiB

hvd = make_api(True)
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
pids = hvd.allgather(np.array([os.getpid()]))
is_over = threading.Event()


def stop_the_last_rank() -> None:
    while not is_over.wait(PAUSE_S):
        os.kill(pids[-1], signal.SIGSTOP)
        is_over.wait(PAUSE_S)
        os.kill(pids[-1], signal.SIGCONT)


stopper = threading.Thread(target=stop_the_last_rank)
if RANK == SIZE - 2:
    stopper.start()
for call in range(2):
    result = hvd.broadcast(np.arange(ROWS, dtype=np.float32) + (call if RANK == 0 else 9), 0)
    assert np.array_equal(result, np.arange(ROWS, dtype=np.float32) + call)
    del result
    # Only the ranks of the first host have rows.
    own_rows = np.arange(ROWS if RANK < SIZE // 2 else 0, dtype=np.float32) + RANK
    result = hvd.allgather(own_rows)
    assert len(result) == SIZE // 2 * ROWS and result[-1] == float(np.float32(ROWS - 1)) + 1, result
    del result
is_over.set()
if RANK == SIZE - 2:
    stopper.join()
print("all checks passed")
