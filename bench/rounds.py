"""Run the contenders in turn.

First run every setting of a peer briefly. Then run ours and the best settings in rounds, in the
order A-B-B-A, and measure the state of the machine before each round.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from contenders import PROGRAMS, Contender, Result, Task, WrongResultError
from ratios import is_quiet

ROUNDS = 7
# A setting whose time is within this factor of the best time may be the best setting.
CLOSE_FACTOR = 1.10
CLOSE_FACTOR_AFTER_ONE_RUN = 1.5
SETTINGS_PER_SIZE = 2  # so many settings run at each size, or fewer
TRIAL_SECONDS = 0.01
TRIAL_BYTES = 16 << 20  # the best settings at this size also run at larger sizes
BUSY_PROGRAM = """
import os
parent = os.getppid()
while os.getppid() == parent:  # end when the benchmark ends, even if it is killed
    for _ in range(1_000_000): pass
"""
Say = Callable[[str], None]


@dataclass
class Entry:
    """A contender with its task and the sizes that it runs.

    For each size, only the fastest of the entries with the same `family` counts.
    """

    family: str  # "ours", or a peer such as "mpi"
    contender: Contender
    task: Task
    sizes: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.family}: {self.contender.name} {self.task.dtype}"

    def run(self) -> dict[int, Result]:
        results = self.contender.run(self.task, self.sizes)
        return dict(zip(self.sizes, results, strict=True))


@dataclass
class Round:
    ping_pong_ns: float
    memcpy_gbps: float
    load: float
    results: dict[str, dict[int, Result]] = field(default_factory=dict)  # by Entry.key and size


def settings_worth_a_round(
    trial_times: dict[Contender, dict[int, float]], sizes: Sequence[int]
) -> dict[Contender, tuple[int, ...]]:
    """Choose which settings run at each size: the best setting, and a second one if it is close.

    Drop all other settings, because only the best setting at a size counts.
    """
    sizes_by_setting: dict[Contender, list[int]] = {}
    tried_sizes = sorted({size for by_size in trial_times.values() for size in by_size})
    for size in sizes:
        size_below = max(candidate for candidate in tried_sizes if candidate <= size)
        times = {
            c: by_size[size_below] for c, by_size in trial_times.items() if size_below in by_size
        }
        best = min(times.values())
        time_max = CLOSE_FACTOR * best
        close_settings = sorted((time, c.name, c) for c, time in times.items() if time <= time_max)
        for _, _, contender in close_settings[:SETTINGS_PER_SIZE]:
            sizes_by_setting.setdefault(contender, []).append(size)
    return {contender: tuple(chosen_sizes) for contender, chosen_sizes in sizes_by_setting.items()}


def may_win(times: dict[Contender, dict[int, float]], candidate: Contender) -> bool:
    return any(
        time
        <= CLOSE_FACTOR_AFTER_ONE_RUN
        * min(by_size[size] for by_size in times.values() if size in by_size)
        for size, time in times[candidate].items()
    )


def try_settings(
    candidates: Sequence[Contender], task: Task, say: Say
) -> dict[Contender, dict[int, float]]:
    """Return the best time of two short runs for each setting. Report and drop settings that
    fail."""
    sizes = tuple(size for size in task.sizes if size <= TRIAL_BYTES)
    short_task = replace(task, seconds=min(task.seconds, TRIAL_SECONDS))
    times: dict[Contender, dict[int, float]] = {}
    failed_settings: set[Contender] = set()
    for pass_number in (1, 2):
        for number, candidate in enumerate(candidates):
            say(f"trying settings, pass {pass_number} of 2: {number + 1}/{len(candidates)}")
            if candidate in failed_settings:
                continue
            try:
                results = candidate.run(short_task, sizes)
            except RuntimeError as failure:
                failed_settings.add(candidate)
                print(f"left out: {failure}", file=sys.stderr)
                continue
            by_size = times.setdefault(candidate, {})
            for size, result in zip(sizes, results, strict=True):
                by_size[size] = min(by_size.get(size, float("inf")), result["p50_us"])
        # The second short run includes only the settings that may still be the best ones.
        candidates = [c for c in candidates if c in times and may_win(times, c)]
    return {
        c: by_size for c, by_size in times.items() if c not in failed_settings and c in candidates
    }


def new_round() -> Round:
    """Measure the state of the machine, and return a round without results."""
    limits = str(PROGRAMS / "limits")
    ping = subprocess.run([limits, "pingpong"], capture_output=True, text=True, check=True)
    words = [limits, "--sizes", "16M", "--seconds", "0.02", "--json"]
    copies = subprocess.run(words, capture_output=True, text=True, check=True)
    [copy] = json.loads(copies.stdout)
    rate = copy["algbw_gbps"] * copy["ranks"]
    return Round(json.loads(ping.stdout)["ping_pong_ns"], rate, os.getloadavg()[0])


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes of normal priority that compute all the time while the block runs."""
    command = [sys.executable, "-c", BUSY_PROGRAM]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def mean_of(first: Result, second: Result) -> Result:
    """Return the average of the two runs of one round."""
    keys = ("p50_us", "p99_us")
    return first | {key: (first[key] + second[key]) / 2 for key in keys}


def run_round(entries: Sequence[Entry], busy: int, say: Say) -> Round:
    """Run A-B-B-A: all contenders once, then again in the opposite order. Gloo runs only once,
    because it is slow."""
    measured_round = new_round()
    order = [*entries, *(entry for entry in reversed(entries) if entry.family != "gloo")]
    with busy_processes(busy):
        for number, entry in enumerate(order):
            say(f"run {number + 1}/{len(order)}")
            results = entry.run()
            by_size = measured_round.results.setdefault(entry.key, {})
            for size, result in results.items():
                by_size[size] = mean_of(by_size[size], result) if size in by_size else result
    return measured_round


def say_round(say: Say, number: int, text: str) -> None:
    say(f"round {number}: {text}")


def quiet_rounds(rounds: Sequence[Round]) -> list[Round]:
    median_ns = statistics.median(measured.ping_pong_ns for measured in rounds)
    return [measured for measured in rounds if is_quiet(measured.ping_pong_ns, median_ns)]


def run_rounds(entries: Sequence[Entry], busy: int, count: int, say: Say) -> list[Round]:
    """Run rounds until `count` of them were quiet, but at most one and a half times `count`."""
    rounds: list[Round] = []
    for number in range(1, count + (count + 1) // 2 + 1):
        if rounds and len(quiet_rounds(rounds)) == count:
            break
        try:
            rounds.append(run_round(entries, busy, functools.partial(say_round, say, number)))
        except WrongResultError:
            raise
        except RuntimeError as failure:
            print(f"round {number} is left out: {failure}", file=sys.stderr)
    if not rounds:
        raise SystemExit("no round was completed")
    return rounds
