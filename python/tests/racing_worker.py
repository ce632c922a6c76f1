"""A worker that leaves the job in one thread, in the middle of a call, while the main thread polls
this call.

As soon as poll() says that the call is done, the call's memory belongs to the program. This program
needs no framework.
"""

from __future__ import annotations

import threading

import numpy as np

import farandole
from farandole import calls, core
from farandole.handle import PreparedCall

CYCLES = 25
ELEMENTS = 1_000_000
PROGRAM_VALUE = -7.0


def start_allreduce(array: np.ndarray) -> calls.Handle[None]:
    """Start an allreduce in place."""
    address = array.ctypes.data
    view = core.BufferView(core.dtypes["float32"], array.shape, address, address)
    call = core.allreduce("", 0, view, core.reduce_ops["sum"], 1.0, 1.0)
    return calls.start(PreparedCall(call, array, core.Engine.check_outcome))


def wait(handle: calls.Handle[None]) -> None:
    try:
        handle.wait()
    except farandole.GroupLostError:
        return  # this rank or the other one has left


for _ in range(CYCLES):
    farandole.init()
    calls.barrier()
    array = np.ones(ELEMENTS, np.float32)
    try:
        handle = start_allreduce(array)
    except farandole.GroupLostError:
        farandole.shutdown()
        continue  # the other rank has already left
    leaving_thread = threading.Thread(target=farandole.shutdown)
    waiting_thread = threading.Thread(target=wait, args=[handle])
    leaving_thread.start()
    waiting_thread.start()
    while not handle.poll():
        pass
    array.fill(PROGRAM_VALUE)
    leaving_thread.join()
    waiting_thread.join()
    written_count = np.count_nonzero(array != PROGRAM_VALUE)
    assert written_count == 0, (
        f"{written_count} elements were written after poll() said that the call is done"
    )
    wait(handle)
print("nothing was written too late", flush=True)
