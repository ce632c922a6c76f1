"""Run contenders interleaved.

First run every setting of a peer briefly. Then run the best ones beside us in rounds A-B-B-A, and
note the state of the machine before each round.
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
CLOSE = 1.10  # a setting within this factor of the best one may be the best one
NOT_HOPELESS = 1.5  # the factor if a setting was tried only once
PER_SIZE = 2  # at most this many settings of a library per size
TRIAL_SECONDS = 0.01
TRIAL_BYTES = 16 << 20  # larger sizes use the best settings of this size
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:  # it ends when the benchmark ends, in whatever way
    for _ in range(1_000_000): pass
"""
Say = Callable[[str], None]


@dataclass
class Entry:
    """A contender with its task and the sizes that it runs. The best one of a family counts."""

    family: str  # ours, mpi, gloo, memcpy, …
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
    results: dict[str, dict[int, Result]] = field(default_factory=dict)  # by contender


def settings_worth_a_round(
    trial: dict[Contender, dict[int, float]], sizes: Sequence[int]
) -> dict[Contender, tuple[int, ...]]:
    """Choose which settings run which sizes: the best of each library and those close to it.

    Drop libraries that are not close to the best library, because only the best one counts.
    """
    chosen: dict[Contender, list[int]] = {}
    tried = sorted({size for of_size in trial.values() for size in of_size})
    for size in sizes:
        near_size = max(one for one in tried if one <= size)
        times = {c: of[near_size] for c, of in trial.items() if near_size in of}
        best = min(times.values())
        near = sorted((time, c.name, c) for c, time in times.items() if time <= CLOSE * best)
        for _, _, contender in near[:PER_SIZE]:
            chosen.setdefault(contender, []).append(size)
    return {contender: tuple(of) for contender, of in chosen.items()}


def may_win(times: dict[Contender, dict[int, float]], candidate: Contender) -> bool:
    return any(
        time <= NOT_HOPELESS * min(of[size] for of in times.values() if size in of)
        for size, time in times[candidate].items()
    )


def try_settings(
    candidates: Sequence[Contender], task: Task, say: Say
) -> dict[Contender, dict[int, float]]:
    """Return the best time of two short runs for each setting. Report and drop settings that
    fail."""
    sizes = tuple(size for size in task.sizes if size <= TRIAL_BYTES)
    short = replace(task, seconds=min(task.seconds, TRIAL_SECONDS))
    times: dict[Contender, dict[int, float]] = {}
    broken: set[Contender] = set()
    for turn in range(2):
        for number, candidate in enumerate(candidates):
            say(f"trying settings, pass {turn + 1} of 2: {number + 1}/{len(candidates)}")
            if candidate in broken:
                continue
            try:
                results = candidate.run(short, sizes)
            except RuntimeError as failure:
                broken.add(candidate)
                print(f"left out: {failure}", file=sys.stderr)
                continue
            of = times.setdefault(candidate, {})
            for size, result in zip(sizes, results, strict=True):
                of[size] = min(of.get(size, float("inf")), result["p50_us"])
        # The second pass only tries settings that may win.
        candidates = [c for c in candidates if c in times and may_win(times, c)]
    return {c: of for c, of in times.items() if c not in broken and c in candidates}


def machine_now() -> Round:
    limits = str(PROGRAMS / "limits")
    ping = subprocess.run([limits, "pingpong"], capture_output=True, text=True, check=True)
    words = [limits, "--sizes", "16M", "--seconds", "0.02", "--json"]
    copies = subprocess.run(words, capture_output=True, text=True, check=True)
    [copy] = json.loads(copies.stdout)
    rate = copy["algbw_gbps"] * copy["ranks"]
    return Round(json.loads(ping.stdout)["ping_pong_ns"], rate, os.getloadavg()[0])


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that compute all the time, at the usual priority."""
    spin = [sys.executable, "-c", SPIN]
    running = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def merged(first: Result, second: Result) -> Result:
    """Merge the two runs of one round."""
    keys = ("p50_us", "p99_us")
    return first | {key: (first[key] + second[key]) / 2 for key in keys}


def one_round(entries: Sequence[Entry], busy: int, say: Say) -> Round:
    """Run A-B-B-A: all contenders once, then again in the opposite order. Gloo is slow and runs
    once."""
    now = machine_now()
    order = [*entries, *(entry for entry in reversed(entries) if entry.family != "gloo")]
    with busy_processes(busy):
        for number, entry in enumerate(order):
            say(f"run {number + 1}/{len(order)}")
            results = entry.run()
            of = now.results.setdefault(entry.key, {})
            for size, result in results.items():
                of[size] = merged(of[size], result) if size in of else result
    return now


def say_round(say: Say, number: int, text: str) -> None:
    say(f"round {number}: {text}")


def quiet_rounds(rounds: Sequence[Round]) -> list[Round]:
    middle = statistics.median(one.ping_pong_ns for one in rounds)
    return [one for one in rounds if is_quiet(one.ping_pong_ns, middle)]


def run_rounds(entries: Sequence[Entry], busy: int, count: int, say: Say) -> list[Round]:
    """Run rounds, and repeat those in which the machine was not quiet, up to half as many again."""
    rounds: list[Round] = []
    for number in range(1, count + (count + 1) // 2 + 1):
        if rounds and len(quiet_rounds(rounds)) == count:
            break
        try:
            rounds.append(one_round(entries, busy, functools.partial(say_round, say, number)))
        except WrongResultError:
            raise
        except RuntimeError as failure:
            print(f"round {number} is left out: {failure}", file=sys.stderr)
    if not rounds:
        raise SystemExit("no round came to its end")
    return rounds
