#!/usr/bin/env python3
"""Measure Farandole from Python on torch tensors, and print the JSON of bench/measure.cc.

`python bench/python_bench.py -n 2 --pieces 1000 --sizes 1024000` starts its own job of two workers.
Each worker splits a tensor of 1024000 bytes into 1000 pieces, submits them with
`allreduce_async_`, or with --grouped as one grouped call, and waits for all of them. The program
measures how long these calls take. It rewrites the values before each repetition, and checks every
result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

import farandole.torch as hvd
from cycles import farandole_command

WARM_UPS, REPETITIONS_MIN, REPETITIONS_MAX = 3, 5, 20_000


def input_pattern(count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Return small whole numbers that repeat with a prime period and differ between the ranks."""
    period = (torch.arange(4093) * 7 + rank * 5) % 13
    return period.repeat(count // 4093 + 1)[:count].to(dtype)


def call_all(pieces: list[torch.Tensor], names: list[str], grouped: bool) -> None:
    if len(pieces) == 1:
        hvd.allreduce_(pieces[0], op=hvd.Sum, name=names[0])
    elif grouped:
        hvd.grouped_allreduce_async_(pieces, op=hvd.Sum, name="grads").wait()
    else:
        handles = [
            hvd.allreduce_async_(piece, op=hvd.Sum, name=name)
            for piece, name in zip(pieces, names, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)


def measure(own_input: torch.Tensor, options: argparse.Namespace) -> tuple[list[float], bool]:
    """Return the nanoseconds of the slowest rank in each repetition, and whether all results of
    this rank were right."""
    expected = sum(
        input_pattern(own_input.numel(), rank, own_input.dtype) for rank in range(hvd.size())
    )
    memory = torch.empty_like(own_input)
    pieces = list(memory.tensor_split(options.pieces))
    names = [f"model.layers.{number}.weight" for number in range(options.pieces)]
    times: list[int] = []
    all_right, begin = True, time.perf_counter()
    for number in range(WARM_UPS + REPETITIONS_MAX):
        if number == WARM_UPS:
            begin = time.perf_counter()
        has_enough = number >= WARM_UPS + REPETITIONS_MIN
        is_over = has_enough and time.perf_counter() - begin > options.seconds
        if hvd.broadcast(torch.tensor(is_over), 0):
            break
        memory.copy_(own_input)
        hvd.barrier()
        start = time.perf_counter_ns()
        call_all(pieces, names, options.grouped)
        times.append(time.perf_counter_ns() - start)
        all_right &= torch.equal(memory, expected)
    slowest = hvd.allreduce(torch.tensor(times[WARM_UPS:], dtype=torch.float64), op=hvd.Max)
    return sorted(slowest.tolist()), all_right


def result_of(size: int, times: list[float], options: argparse.Namespace) -> Any:
    p50 = times[round(0.5 * (len(times) - 1))]
    p99 = times[round(0.99 * (len(times) - 1))]
    return {
        "library": "farandole/torch",
        "operation": "allreduce",
        "bytes": size,
        "ranks": hvd.size(),
        "dtype": options.dtype,
        "memory": "ordinary",
        "consume": False,
        "tight": False,
        "in_place": True,
        "pieces": options.pieces,
        "grouped": options.grouped,
        "repetitions": len(times),
        "p50_us": p50 / 1e3,
        "p99_us": p99 / 1e3,
        "algbw_gbps": size / p50,
        "busbw_gbps": size / p50 * 2 * (hvd.size() - 1) / hvd.size(),
    }


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    hvd.init()
    if options.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[hvd.rank() % len(cores)]})
    dtype = getattr(torch, options.dtype)
    results = []
    for size in options.sizes:
        own_input = input_pattern(max(size // dtype.itemsize, options.pieces), hvd.rank(), dtype)
        times, good = measure(own_input, options)
        all_right = hvd.allreduce(torch.tensor(int(good)), op=hvd.Min)
        results.append(result_of(size, times, options) | {"verified": bool(all_right)})
    if hvd.rank() == 0:
        print(json.dumps(results))


def sizes_in(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operation", nargs="?", default="allreduce", choices=["allreduce"])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=sizes_in, default=[1024000])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--pieces", type=int, default=1)
    for flag in ("--grouped", "--json", "--worker"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    job_command = (
        farandole_command(),
        "run",
        "-n",
        str(options.ranks),
        sys.executable,
        *sys.argv,
        "--worker",
    )
    job = subprocess.run(job_command, check=True, stdout=subprocess.PIPE, text=True)
    line = next(line for line in job.stdout.splitlines() if line.startswith("[0] "))
    print(line.removeprefix("[0] "))


if __name__ == "__main__":
    main()
