#!/usr/bin/env python3
"""Compare an allreduce of farandole.jax with psum over JAX's own collectives, which use Gloo.

Two processes belong to a job of Farandole and also to a job of jax.distributed. In each round, each
process doubles the same array and sums it over both processes, first in one way and then in the
other. So the program has just computed the array that it sums, as in a training step. Every result
is checked. Run it with `.venv/bin/python bench/frameworks/jax_bench.py`; it starts the processes
itself.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import farandole.jax as hvd

RANKS = 2
CALLS_PER_ROUND = 5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 4, 16, 64])
    return parser.parse_args()


def start_workers() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    command = Path(sys.executable).with_name("farandole")
    words = [str(command), "run", "-n", str(RANKS), "--prefix", "", sys.executable, *sys.argv]
    variables = {"JAX_PLATFORMS": "cpu", "BENCH_COORDINATOR": place}
    return subprocess.run(words, check=False, env=os.environ | variables).returncode


def median_seconds(run: Callable[[], Any], check: Callable[[Any], None]) -> float:
    seconds = []
    for _ in range(CALLS_PER_ROUND):
        begin = time.perf_counter()
        result = run()
        result.block_until_ready()
        seconds.append(time.perf_counter() - begin)
        check(result)
    return statistics.median(seconds)


def measure(options: argparse.Namespace) -> None:
    hvd.init()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ["BENCH_COORDINATOR"], hvd.size(), hvd.rank())
    (device,) = jax.local_devices()
    mesh = Mesh(jax.devices(), "ranks")
    replicated, divided = PartitionSpec(), PartitionSpec("ranks")
    psum = jax.jit(
        shard_map(
            lambda x: jax.lax.psum(2 * x, "ranks"), mesh, in_specs=divided, out_specs=replicated
        )
    )
    allreduce = jax.jit(lambda x: hvd.allreduce(2 * x, op=hvd.Sum))
    if hvd.rank() == 0:
        print(f"JAX {jax.__version__}, {hvd.size()} processes, float32, medians in ms")
        print(f"{'MiB':>6} {'psum':>9} {'allreduce':>10} {'ratio':>7}  [least, most]")
    for mib in options.mib:
        count = int(mib * 2**18)
        own = np.arange(count, dtype=np.float32) % 1000 + hvd.rank()
        wanted = 4 * (own - hvd.rank()) + 2
        local_array = jax.device_put(own, device)
        global_array = jax.make_array_from_single_device_arrays(
            (hvd.size() * count,), NamedSharding(mesh, divided), [local_array]
        )

        def check(result: Any, wanted: Any = wanted) -> None:
            assert np.array_equal(np.asarray(result.addressable_data(0)), wanted)

        rounds = []
        for _ in range(options.rounds + 1):  # the first round compiles
            hvd.barrier()
            theirs = median_seconds(functools.partial(psum, global_array), check)
            hvd.barrier()
            ours = median_seconds(functools.partial(allreduce, local_array), check)
            rounds.append((theirs, ours))
        report(mib, rounds[1:], hvd.rank())


def report(mib: float, rounds: list[tuple[float, float]], rank: int) -> None:
    if rank > 0:
        return
    theirs, ours = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
    ratios = sorted(one / other for one, other in rounds)
    range_text = f"[{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    ratio = statistics.median(ratios)
    print(f"{mib:>6g} {theirs:>9.2f} {ours:>10.2f} {ratio:>6.2f}x  {range_text}", flush=True)


if __name__ == "__main__":
    arguments = parse_arguments()
    if "BENCH_COORDINATOR" not in os.environ:
        sys.exit(start_workers())
    measure(arguments)
