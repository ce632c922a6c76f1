"""A worker of a job of two, in which a compiled program fails on both ranks.

Rank 1 ends while its program runs. Then rank 0 makes another call, and prints the error of this
call.
"""

from __future__ import annotations

import contextlib
import os
import signal

import jax
import jax.numpy as jnp

import farandole.jax as hvd
from farandole.jax.primitive import wait_for_programs


@jax.jit
def step(x: jax.Array) -> jax.Array:
    for _ in range(20):  # delays the call, so that it fails after the program has started
        x = jnp.tanh(x @ x)
    return hvd.allreduce(x)


if os.environ["FARANDOLE_RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that this rank has time to print its error
hvd.init()
matrix = jnp.ones((300 + hvd.rank(), 300 + hvd.rank()))
if hvd.rank() == 1:
    step(matrix)
else:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        step(matrix)
        wait_for_programs()
    try:
        hvd.barrier()
    except hvd.GroupLostError as error:
        print(f"survivor: {error}", flush=True)
