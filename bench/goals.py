"""The goals of the benchmark: the tasks to measure, and the required results.

A speed-up is a peer's time divided by ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from contenders import Task

K, M = 1 << 10, 1 << 20
SMALL_SIZES = (8, 64, 256, 1 * K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K, 64 * K)
LARGE_SIZES = (64 * K, 256 * K, 1 * M, 4 * M, 16 * M, 64 * M, 256 * M)
MIXED_SIZES = (8, 1 * K, 16 * K, 64 * K, 256 * K, 1 * M, 4 * M, 16 * M, 64 * M)
OVERSUBSCRIBED_SIZES = (8, 64, 1 * K, 8 * K, 64 * K, 256 * K, 1 * M)


@dataclass(frozen=True)
class Threshold:
    """The required and the desired speed-ups over one peer.

    `must` is the required geometric mean over the sizes, and `must_worst` the required speed-up at
    the worst size. `stretch` and `stretch_worst` are the same for the more ambitious goal.
    """

    peer: str  # mpi, gloo, memcpy, float32
    must: float | None
    stretch: float | None = None
    must_worst: float = 0
    stretch_worst: float = 0


@dataclass(frozen=True)
class Comparison:
    """One comparison over sizes. A goal is reached when all its comparisons reach all their
    thresholds."""

    goal: str
    title: str
    task: Task
    thresholds: tuple[Threshold, ...]
    heap: bool = False  # our tensors are in the heap; peers use ordinary memory
    busy: int = 0  # how many other processes keep the cores busy
    tail: bool = False  # compare the ratios p99 / p50, not the times

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(threshold.peer for threshold in self.thresholds)


def oversubscribed_comparisons() -> Iterator[Comparison]:
    for busy, threshold in ((0, Threshold("mpi", 1.3, 2)), (2, Threshold("mpi", 5, 20))):
        for ranks in (4, 8):
            load_text = "beside two busy processes" if busy else "quiet"
            task = Task(ranks=ranks, sizes=OVERSUBSCRIBED_SIZES, seconds=0.05 if busy else 0.02)
            yield Comparison(
                "G6", f"allreduce, {ranks} ranks, {load_text}", task, (threshold,), busy=busy
            )


def all_comparisons() -> Iterator[Comparison]:
    tight = Task(sizes=(8,), flags=("--tight",))
    fast = (Threshold("mpi", 1 / 0.9, 1 / 0.6), Threshold("gloo", 50))
    yield Comparison("G1", "allreduce, 2 ranks, back to back", tight, fast)

    small = (Threshold("mpi", 1.3, 2, must_worst=0.9, stretch_worst=1.0),)
    for ranks in (2, 4):
        for how, flags in (("back to back", ("--tight",)), ("one call after a barrier", ())):
            task = Task(ranks=ranks, sizes=SMALL_SIZES, flags=flags, seconds=0.01)
            yield Comparison("G2", f"allreduce, {ranks} ranks, {how}", task, small)

    large = Task(sizes=LARGE_SIZES, seconds=0.03)
    thresholds = (Threshold("mpi", 1.3, 2), Threshold("gloo", 5, 10))
    yield Comparison("G3", "allreduce, 2 ranks, ordinary memory", large, thresholds)

    thresholds = (Threshold("mpi", 2.5, 4), Threshold("memcpy", None, 0.85))
    for how, flags in (("", ()), (", in place", ("--in-place",))):
        task = replace(large, flags=("--consume", *flags))
        title = f"allreduce, 2 ranks, heap memory, result read{how}"
        yield Comparison("G4", title, task, thresholds, heap=True)

    for operation in ("reducescatter", "allgather", "broadcast", "alltoall"):
        task = Task(operation=operation, sizes=MIXED_SIZES, seconds=0.02)
        yield Comparison(
            "G5", f"{operation}, 2 ranks, ordinary memory", task, (Threshold("mpi", 1.3, 2),)
        )

    yield from oversubscribed_comparisons()

    for dtype in ("bfloat16", "float16"):
        task = Task(sizes=LARGE_SIZES[:-1], dtype=dtype, seconds=0.03)
        title = f"allreduce, 2 ranks, {dtype} against our float32, same bytes"
        yield Comparison("G7", title, task, (Threshold("float32", 0.95),))

    task = Task(sizes=(64 * K,), seconds=0.3)
    title = "allreduce, 2 ranks, one call after a barrier: p99 / p50"
    yield Comparison("G23", title, task, (Threshold("mpi", 1.0),), tail=True)


GOALS = ("G1", "G2", "G3", "G4", "G5", "G6", "G7", "G23")
# A stretch goal that does not depend on the other libraries: our p99 is at most this many times our
# p50.
TAIL_RATIO_STRETCH = 1.5


def comparisons_of(goal: str) -> list[Comparison]:
    return [comparison for comparison in all_comparisons() if comparison.goal == goal]
