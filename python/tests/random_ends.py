"""Each rank makes random calls, checks each result, and ends right after its last call.

SEED chooses the calls of the job and the pauses of each rank. The job may run on any number of
hosts.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np
from numpy_frontend import make_api

OPERATIONS = ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter"]
ROWS = [1, 100, 5_000, 70_000, 400_000]  # for a note, for one window, for several

hvd = make_api(True)
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
common_generator = random.Random(int(sys.argv[1]))
own_generator = random.Random(1000 * int(sys.argv[1]) + RANK)


def rows_of(rank: int, rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.float32) + rank


def check(operation: str, rows: int, root: int) -> None:
    own_values = rows_of(RANK, rows)
    if operation == "barrier":
        hvd.barrier()
        return
    if operation == "allgather":
        result, expected = hvd.allgather(own_values), [rows_of(rank, rows) for rank in range(SIZE)]
    elif operation == "allreduce":
        result = hvd.allreduce(own_values, op=hvd.Sum)
        expected = [sum(rows_of(rank, rows) for rank in range(SIZE))]
    elif operation == "alltoall":
        result = hvd.alltoall(np.concatenate([own_values + 10 * to for to in range(SIZE)]))
        expected = [rows_of(rank, rows) + 10 * RANK for rank in range(SIZE)]
    elif operation == "broadcast":
        result, expected = hvd.broadcast(own_values, root), [rows_of(root, rows)]
    else:
        all_rows = np.repeat(np.arange(SIZE, dtype=np.float32), rows)
        result, expected = hvd.reducescatter(all_rows, op=hvd.Sum), [np.full(rows, SIZE * RANK)]
    assert np.array_equal(result, np.concatenate(expected)), (operation, rows, root)


for _ in range(common_generator.choice([1, 2, 6])):
    call = (
        common_generator.choice(OPERATIONS),
        common_generator.choice(ROWS),
        common_generator.randrange(SIZE),
    )
    if own_generator.random() < 0.4:
        time.sleep(0.02 * own_generator.random())
    check(*call)
print("all checks passed")
