"""Join a job, sum up a tensor in memory of the engine, and leave. An installed wheel must do this
without a framework."""

from __future__ import annotations

import ctypes

import farandole
from farandole import calls, core, lifecycle

ELEMENT_COUNT = 100_000

farandole.init()
rank, size = farandole.rank(), farandole.size()
engine = lifecycle.engine()
calls.barrier()
memory = engine.allocate(4 * ELEMENT_COUNT)
numbers = memoryview(memory).cast("B").cast("f")
numbers[0], numbers[ELEMENT_COUNT - 1] = rank + 1, 10 * (rank + 1)
address = ctypes.addressof(ctypes.c_char.from_buffer(numbers))
buffer = core.BufferView(core.dtypes["float32"], (ELEMENT_COUNT,), address, address)
call = core.allreduce("smoke", 0, buffer, core.reduce_ops["sum"], 1.0, 1.0)
engine.submit(call, True)
engine.wait(call.handle)
engine.check_outcome(call.handle)
engine.release(call.handle)
calls.barrier()
farandole.shutdown()
print(
    f"rank {rank} of {size}: {numbers[0]:g} {numbers[1]:g} {numbers[ELEMENT_COUNT - 1]:g}",
    flush=True,
)
