#!/usr/bin/env python3
"""Measure how efficient an elastic job is while its workers are killed, and how soon it notices a
stopped worker.

Four workers train an MLP with PyTorch, in steps of 100 ms that each end with a commit. In each
round, the same job runs without kills, with one random worker killed (SIGKILL) per 60 s, and with
one per 15 s. The efficiency of a job is its good steps per second times its mean number of members,
divided by the same product of the job without kills. A step is good if the state at the end
contains it. A repeated step counts once.

Then one random worker after another is stopped (SIGSTOP). Two times are measured from each stop:
until `farandole run` reports the stopped worker, and until the next good step. The second time
contains the 10 s for which `farandole run` waits for the worker to go on. Run it with
`.venv/bin/python bench/frameworks/elastic_efficiency.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import farandole.torch as hvd
from farandole import lifecycle

WORKERS = 4
STEP_SECONDS = 0.1
KILL_PERIODS_S = (0, 60, 15)  # seconds between kills; 0 for no kills
NOTICE_SECONDS_MAX = 60
STEP = re.compile(r"step (\d+) epoch (\d+) members (\d+) at ([\d.]+)")
MEMBER = re.compile(r"member (\d+)$", re.MULTILINE)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each kind")
    parser.add_argument("--seconds", type=float, default=120, help="how long each job is measured")
    parser.add_argument("--stops", type=int, default=6, help="how many workers are stopped")
    parser.add_argument("--seed", type=int, default=1, help="chooses the workers")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(end: Path) -> None:
    """Train until the file `end` exists."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, steps=0, batches=0)

    @hvd.elastic.run
    def train_on(state: hvd.elastic.TorchState) -> None:
        print(f"member {os.getpid()}", flush=True)
        has_ended = False
        while not has_ended:
            step_end = time.monotonic() + STEP_SECONDS
            optimizer.zero_grad()
            model(torch.randn(16, 784)).square().mean().backward()
            optimizer.step()
            ending = hvd.allreduce(torch.tensor([float(end.exists())]), op=hvd.Max, name="end")
            has_ended = bool(ending.item())
            time.sleep(max(0.0, step_end - time.monotonic()))
            state.steps += 1
            state.batches += hvd.size()
            # Each worker prints this line before it commits. So the line of a committed step exists
            # even if some workers are killed before they print theirs.
            now, epoch = time.monotonic(), lifecycle.engine().epoch
            text = f"step {state.steps} epoch {epoch} members {hvd.size()} at {now:.4f}"
            print(text, flush=True)
            state.commit()

    train_on(state)
    hvd.check_parameters(model.named_parameters())
    print(f"equal after {state.steps} steps, {state.batches} batches", flush=True)


@dataclass
class Step:
    epoch: int
    members: int
    time: float


class Job:
    """A running job, and the steps that its members have printed. If a later group has repeated a
    step, the step belongs to this later group."""

    def __init__(self, folder: str) -> None:
        self.end_file = Path(folder) / f"end.{time.monotonic_ns()}"
        words = [str(Path(sys.executable).with_name("farandole")), "run", "-n", str(WORKERS)]
        words += ["--min-workers", "1", sys.executable, __file__, "--worker", str(self.end_file)]
        self.process = subprocess.Popen(
            words,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.text = ""
        self.steps: dict[int, Step] = {}
        self.line_times: list[tuple[float, str]] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.wait_for(lambda: self.members() == WORKERS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.line_times.append((time.monotonic(), line))
            self.text += line
            if match := STEP.search(line):
                step = Step(int(match[2]), int(match[3]), float(match[4]))
                known_step = self.steps.get(int(match[1]))
                if known_step is None or known_step.epoch < step.epoch:
                    self.steps[int(match[1])] = step

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + NOTICE_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline and self.reader.is_alive(), self.text
            time.sleep(0.005)

    def members(self) -> int:
        """Return how many members have made the last step."""
        last_step = max(self.steps, default=0)
        return self.steps[last_step].members if last_step else 0

    def signal_random_member(self, number: int, random_source: random.Random) -> None:
        """Send a signal to a random member."""
        pids = [int(pid) for pid in MEMBER.findall(self.text) if Path(f"/proc/{pid}").exists()]
        os.kill(random_source.choice(sorted(set(pids))), number)

    def end(self) -> None:
        """End the job and check what it has done."""
        self.end_file.touch()
        code = self.process.wait()
        self.reader.join()
        assert code == 0, self.text
        batches = sum(step.members for step in self.steps.values())
        assert self.steps.keys() == set(range(1, len(self.steps) + 1)), "a step is missing"
        text = f"equal after {len(self.steps)} steps, {batches} batches"
        assert self.text.count(text) == self.members(), self.text


@dataclass
class Rate:
    """What a job did per second."""

    steps: float
    members: float  # the mean number of members of a step


def measure_rate(folder: str, period: int, seconds: float, random_source: random.Random) -> Rate:
    job = Job(folder)
    begin = time.monotonic()
    kills = int(seconds / period) if period else 0
    for kill in range(kills):
        time.sleep(max(0.0, begin + period * (kill + 0.5) - time.monotonic()))
        job.signal_random_member(signal.SIGKILL, random_source)
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    job.end()
    steps = [step for step in job.steps.values() if begin <= step.time < begin + seconds]
    return Rate(len(steps) / seconds, statistics.fmean(step.members for step in steps))


def measure_stops(
    folder: str, count: int, random_source: random.Random
) -> tuple[list[float], list[float]]:
    """Return the seconds from each stop until it was reported, and until the next good step."""
    report_times, next_step_times = [], []
    job = Job(folder)
    for _ in range(count):
        job.wait_for(lambda: job.members() == WORKERS)
        time.sleep(random_source.uniform(1, 2))
        stop_time = time.monotonic()
        job.signal_random_member(signal.SIGSTOP, random_source)

        def report_time(since: float = stop_time) -> float | None:
            times = (t for t, line in job.line_times if t > since and "(SIGSTOP)" in line)
            return next(times, None)

        def next_step(since: float = stop_time) -> float | None:
            # When a worker was stopped, the other workers may still have finished the step that was
            # running. This step does not count.
            return min(
                (s.time for s in job.steps.values() if s.time > since + 2 * STEP_SECONDS),
                default=None,
            )

        job.wait_for(lambda: report_time() is not None and next_step() is not None)
        report_times.append((report_time() or 0) - stop_time)
        next_step_times.append((next_step() or 0) - stop_time)
    job.wait_for(lambda: job.members() == WORKERS)
    job.end()
    return report_times, next_step_times


def row(name: str, values: list[float], format_of_values: str) -> str:
    texts = (format(value, format_of_values) for value in (statistics.median(values), *values))
    median, *each = texts
    return f"{name:<44} {median:>8}   {' '.join(each)}"


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        return train(Path(arguments.worker))
    random_source = random.Random(arguments.seed)
    rates: dict[int, list[Rate]] = {period: [] for period in KILL_PERIODS_S}
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for period in KILL_PERIODS_S:
                rates[period].append(measure_rate(folder, period, arguments.seconds, random_source))
        report_times, next_step_times = measure_stops(folder, arguments.stops, random_source)
    print(f"{'':<44} {'median':>8}   each round or stop")
    for period in KILL_PERIODS_S:
        name = f"one kill per {period} s" if period else "no kill"
        print(row(f"{name}: good steps per second", [r.steps for r in rates[period]], ".2f"))
        print(row(f"{name}: mean members", [r.members for r in rates[period]], ".2f"))
        products = zip(rates[period], rates[0], strict=True)
        efficiencies = [r.steps * r.members / (b.steps * b.members) for r, b in products]
        print(row(f"{name}: efficiency", efficiencies, ".1%"))
    print(row("from SIGSTOP to the report, seconds", report_times, ".3f"))
    print(row("from SIGSTOP to the next good step, seconds", next_step_times, ".2f"))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    return None


if __name__ == "__main__":
    main()
