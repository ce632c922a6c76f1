#!/usr/bin/env python3
"""Measure how long a training stands still when a worker is killed, and when a new one joins.

Four workers train the same MLP with PyTorch. In an elastic job of Farandole, the worker with the
highest rank kills itself (SIGKILL) whenever the job has been complete for some steps, and is
replaced. A gap is the time between two steps of a survivor; the replicas must be equal at the end.

torchrun starts all workers again when one is killed. Its restarted workers often could not connect
to each other with Gloo (PyTorch 2.13.0), so here they train alone, and the gap is a lower bound:
the time from the last step before the kill to the first step of a new process. The kinds of jobs
run in turn. Run it with `.venv/bin/python bench/frameworks/elastic_bench.py`; it starts the jobs
itself.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import farandole.torch as hvd

WORKERS = 4
STEPS_BETWEEN_KILLS = 40


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each kind")
    parser.add_argument("--kills", type=int, default=6, help="in each job of Farandole")
    parser.add_argument("--worker", choices=("farandole", "torchrun"), help=argparse.SUPPRESS)
    return parser.parse_args()


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    return torch.nn.Sequential(*layers)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 784)).square().mean().backward()
    optimizer.step()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_elastically(kills: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, kills=0)
    last_step: list[tuple[float, int]] = []

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        complete_steps = 0
        while state.kills < kills or complete_steps < STEPS_BETWEEN_KILLS:
            step(model, optimizer)
            now = time.monotonic()
            if last_step and last_step[-1][1] != hvd.size():
                before, size = last_step[-1]
                kind = "killed" if hvd.size() < size else "joined"
                print(f"gap {kind} {1000 * (now - before):.1f}", flush=True)
            last_step[:] = [(now, hvd.size())]
            complete_steps += hvd.size() == WORKERS
            ends = complete_steps == STEPS_BETWEEN_KILLS and state.kills < kills
            if ends:
                state.kills, complete_steps = state.kills + 1, 0
            state.commit()
            if ends and hvd.rank() == WORKERS - 1:
                kill_self()

    train(state)
    hvd.check_parameters(model.named_parameters())
    print("equal", flush=True)


def train_with_torchrun() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for i in range(STEPS_BETWEEN_KILLS):
        step(model, optimizer)
        if os.environ["RANK"] == "0" and (is_first or i == 0):
            print(f"{'before' if is_first else 'after'} {time.monotonic():.4f}", flush=True)
    if is_first:
        if os.environ["RANK"] == str(WORKERS - 1):
            kill_self()
        time.sleep(60)
    print("finished", flush=True)


def output_of(words: list[str], end: str) -> str:
    done = subprocess.run(
        words,
        check=False,
        text=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(end) == WORKERS, done.stdout
    return done.stdout


def measure_farandole(kills: int) -> dict[str, list[float]]:
    command = str(Path(sys.executable).with_name("farandole"))
    words = [command, "run", "-n", str(WORKERS), "--min-workers", "2", "--cooldown-range", "0,0"]
    program = [sys.executable, __file__, "--worker", "farandole", "--kills", str(kills)]
    text = output_of([*words, *program], "equal")
    return {
        kind: [float(ms) for ms in re.findall(rf"gap {kind} ([\d.]+)", text)]
        for kind in ("killed", "joined")
    }


def measure_torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", folder]
        words += ["--nproc-per-node", str(WORKERS), "--max-restarts", "1"]
        text = output_of([*words, __file__, "--worker", "torchrun"], "finished")
    before = max(float(seconds) for seconds in re.findall(r"before ([\d.]+)", text))
    after = [float(seconds) for seconds in re.findall(r"after ([\d.]+)", text)]
    return 1000 * (after[0] - before)


def row(name: str, values: list[float]) -> str:
    return f"{name:<42} {len(values):>5} {statistics.median(values):>9.0f} {max(values):>9.0f}"


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker == "farandole":
        return train_elastically(arguments.kills)
    if arguments.worker == "torchrun":
        return train_with_torchrun()
    gaps: dict[str, list[float]] = {"killed": [], "joined": []}
    restarts = []
    for _ in range(arguments.rounds):
        for kind, values in measure_farandole(arguments.kills).items():
            gaps[kind] += values
        restarts.append(measure_torchrun())
    print(f"{'milliseconds without a step':<42} {'gaps':>5} {'median':>9} {'longest':>9}")
    print(row("Farandole, a worker is killed", gaps["killed"]))
    print(row("Farandole, a worker joins", gaps["joined"]))
    print(row("torchrun, a worker is killed (see --help)", restarts))
    return None


if __name__ == "__main__":
    main()
