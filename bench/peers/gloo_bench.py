#!/usr/bin/env python3
"""Measure Gloo through torch.distributed as bench/measure.cc does, and print the same JSON.

Allreduce and broadcast are measured in place, because Gloo has them only in place. Each rank has
one thread, which is pinned to a core of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CACHE_BYTES, BUFFERS, WARM_UPS, REPETITIONS_MIN, REPETITIONS_MAX = 1 << 20, 3, 3, 3, 20_000
TIGHT_CALLS = 32  # calls in a row; each enlarges the sum, which must stay exact
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def input_pattern(count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Return small whole numbers that repeat with a prime period and differ between the ranks."""
    period = (torch.arange(4093) * 7 + rank * 5) % 13
    return period.repeat(count // 4093 + 1)[:count].to(dtype)


@dataclass
class Shape:
    operation: str
    count: int  # number of elements in the whole tensor
    rank: int
    ranks: int
    dtype: torch.dtype

    def piece(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        length = self.count // self.ranks
        return tensor[index * length : (index + 1) * length]

    def input_of(self, rank: int) -> torch.Tensor:
        count = self.count // self.ranks if self.operation == "allgather" else self.count
        return input_pattern(count, rank, self.dtype)

    def expected(self) -> torch.Tensor:
        all_ranks = range(self.ranks)
        if self.operation == "broadcast":
            return self.input_of(0)
        if self.operation == "allgather":
            return torch.cat([self.input_of(rank) for rank in all_ranks])
        if self.operation == "alltoall":
            return torch.cat([self.piece(self.input_of(rank), self.rank) for rank in all_ranks])
        total = torch.stack([self.input_of(rank) for rank in all_ranks]).sum(0).to(self.dtype)
        return self.piece(total, self.rank) if self.operation == "reducescatter" else total

    def call(self, own_input: torch.Tensor, result: torch.Tensor) -> None:
        if self.operation == "allreduce":
            dist.all_reduce(result)
        elif self.operation == "broadcast":
            dist.broadcast(result, 0)
        elif self.operation == "allgather":
            dist.all_gather_into_tensor(result, own_input)
        elif self.operation == "alltoall":
            dist.all_to_all_single(result, own_input)
        else:
            dist.reduce_scatter_tensor(result, own_input)


class SharedResults:
    """A barrier that polls, as in the other programs, and a table of the times of all ranks."""

    def __init__(self, arrivals: torch.Tensor, times: torch.Tensor, rank: int) -> None:
        self.arrivals, self.times, self.rank = arrivals.numpy(), times.numpy(), rank
        self.oversubscribed = len(self.arrivals) > len(os.sched_getaffinity(0))

    def barrier(self) -> None:
        self.arrivals[self.rank] += 1
        turn = self.arrivals[self.rank]
        while self.arrivals.min() < turn:
            if self.oversubscribed:
                time.sleep(0)


def measure(
    shape: Shape, shared_results: SharedResults, options: argparse.Namespace
) -> tuple[int, bool]:
    """Return how many repetitions counted, and whether all results of this rank were right."""
    own_input, expected = shape.input_of(shape.rank), shape.expected()
    in_place = shape.operation in ("allreduce", "broadcast")
    is_large = own_input.numel() * own_input.element_size() > CACHE_BYTES
    inputs = [own_input.clone() for _ in range(BUFFERS if is_large else 1)]
    outputs = inputs if in_place else [torch.empty_like(expected) for _ in inputs]
    calls = TIGHT_CALLS if options.tight else 1
    if calls > 1 and shape.operation == "allreduce":
        expected = expected * float(shape.ranks) ** (calls - 1)
    all_right, counted_repetitions, begin = True, 0, time.perf_counter()
    for number in range(WARM_UPS + REPETITIONS_MAX):
        counted_repetitions = number - WARM_UPS
        if counted_repetitions == 0:
            begin = time.perf_counter()
        if shape.rank == 0 and counted_repetitions >= REPETITIONS_MIN:
            shared_results.times[0, -1] = time.perf_counter() - begin > options.seconds
        shared_results.barrier()
        if shared_results.times[0, -1]:
            break
        source, result = inputs[number % len(inputs)], outputs[number % len(inputs)]
        source.copy_(own_input)
        shared_results.barrier()
        start = time.perf_counter_ns()
        for _ in range(calls):
            shape.call(source, result)
        if options.consume:
            result.sum()
        shared_results.times[shape.rank, max(counted_repetitions, 0)] = (
            time.perf_counter_ns() - start
        ) / calls
        all_right &= torch.equal(result, expected)
    shared_results.barrier()
    return counted_repetitions, all_right


def result_of(size: int, shape: Shape, times: list[float], options: argparse.Namespace) -> Any:
    p50 = times[round(0.5 * (len(times) - 1))]
    p99 = times[round(0.99 * (len(times) - 1))]
    return {
        "library": "gloo",
        "operation": shape.operation,
        "bytes": size,
        "ranks": shape.ranks,
        "dtype": options.dtype,
        "memory": "ordinary",
        "consume": options.consume,
        "tight": options.tight,
        "in_place": shape.operation in ("allreduce", "broadcast"),
        "repetitions": len(times),
        "p50_us": p50 / 1e3,
        "p99_us": p99 / 1e3,
        "algbw_gbps": size / p50,
        "busbw_gbps": size / p50 * BUS_FACTORS[shape.operation](shape.ranks),
    }


def worker(rank: int, folder: str, shared: list[torch.Tensor], options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    shared_results = SharedResults(shared[0], shared[1], rank)
    if options.pin:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = dist.FileStore(f"{folder}/store", options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    dtype = getattr(torch, options.dtype)
    results = []
    for size in options.sizes:
        unit = torch.empty(0, dtype=dtype).element_size() * options.ranks
        count = (size + unit - 1) // unit * unit // (unit // options.ranks)
        shape = Shape(options.operation, count, rank, options.ranks, dtype)
        shared_results.times[0, -1] = 0
        counted, good = measure(shape, shared_results, options)
        slowest = sorted(shared_results.times[:, :counted].max(axis=0).tolist())
        verdicts: list[Any] = [None] * options.ranks
        dist.all_gather_object(verdicts, good)
        results.append(result_of(size, shape, slowest, options) | {"verified": all(verdicts)})
    if rank == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operation", nargs="?", default="allreduce", choices=BUS_FACTORS)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.1)
    for flag in ("--consume", "--tight", "--in-place", "--json"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    arrivals = torch.zeros(options.ranks, dtype=torch.int64).share_memory_()
    times = torch.zeros(options.ranks, REPETITIONS_MAX + 1, dtype=torch.float64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder, [arrivals, times], options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
