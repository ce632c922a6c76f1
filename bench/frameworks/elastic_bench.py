#!/usr/bin/env python3
"""Measure how long a training pauses when a worker is killed, and when a new worker joins.

Four workers train the same MLP with PyTorch. In an elastic job of Farandole, the worker with the
highest rank kills itself (SIGKILL) whenever four workers have trained together for some steps. Then
a new worker replaces it. A gap is the time between two steps of a survivor. At the end, all workers
must have equal models. With `--jax`, the workers train the same MLP with JAX instead. Then the gaps
are also compared with the first step of a worker, which traces and compiles the program.

torchrun starts all workers again when one is killed. With Gloo (PyTorch 2.13.0), the restarted
workers of torchrun were often unable to connect to each other. So in this benchmark the workers of
torchrun train alone, and the gap that they report is a lower bound: the time from the last step
before the kill to the first step of a new process. The kinds of jobs take turns. Run it with
`.venv/bin/python bench/frameworks/elastic_bench.py`; it starts the jobs itself.
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
from typing import Any

import torch

import farandole.torch as hvd

WORKERS = 4
STEPS_BETWEEN_KILLS = 40


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each kind")
    parser.add_argument("--kills", type=int, default=6, help="in each job of Farandole")
    parser.add_argument("--jax", action="store_true", help="measure JAX instead of PyTorch")
    parser.add_argument(
        "--worker", choices=("farandole", "jax", "torchrun"), help=argparse.SUPPRESS
    )
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
    gaps = Gaps()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        complete_steps = 0
        while state.kills < kills or complete_steps < STEPS_BETWEEN_KILLS:
            step(model, optimizer)
            gaps.step_is_done(hvd.size())
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


class Gaps:
    """Prints the time between two steps of this worker if the number of workers has changed between
    these steps."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def step_is_done(self, size: int) -> None:
        now = time.monotonic()
        if self._last is not None and self._last[1] != size:
            kind = "killed" if size < self._last[1] else "joined"
            print(f"gap {kind} {1000 * (now - self._last[0]):.1f}", flush=True)
        self._last = (now, size)


def train_with_jax(kills: int) -> None:
    import jax  # noqa: PLC0415, the other workers do not need it
    import optax  # type: ignore[import-untyped]  # noqa: PLC0415

    import farandole.jax as hvd  # noqa: PLC0415

    keys = jax.random.split(jax.random.PRNGKey(0))
    params = {
        "first": 0.05 * jax.random.normal(keys[0], (784, 256)),
        "last": 0.05 * jax.random.normal(keys[1], (256, 10)),
    }
    optimizer = hvd.DistributedOptimizer(optax.adam(0.001))

    @jax.jit
    def update(params: Any, opt_state: Any, x: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return ((jax.nn.relu(x @ params["first"]) @ params["last"]) ** 2).mean()

        gradients = jax.grad(loss_of)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    hvd.init()
    state: Any = hvd.elastic.JaxState(
        params=params, opt_state=optimizer.init(params), kills=0, complete_steps=0
    )
    gaps, is_first = Gaps(), True
    x = jax.random.normal(keys[0], (16, 784))
    step = hvd.elastic.Step(state)
    while step.ready() and (state.kills < kills or state.complete_steps < STEPS_BETWEEN_KILLS):
        step_begin = time.monotonic()
        ends = False
        with step:
            state.params, state.opt_state = jax.block_until_ready(
                update(state.params, state.opt_state, x)
            )
            if is_first:
                print(f"gap first {1000 * (time.monotonic() - step_begin):.1f}", flush=True)
            is_first = False
            gaps.step_is_done(hvd.size())
            state.complete_steps += hvd.size() == WORKERS
            ends = state.complete_steps == STEPS_BETWEEN_KILLS and state.kills < kills
            if ends:
                state.kills, state.complete_steps = state.kills + 1, 0
        if ends and step.ready() and hvd.rank() == WORKERS - 1:
            kill_self()
    hvd.check_parameters(state.params)
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
    process = subprocess.run(
        words,
        check=False,
        text=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count(end) == WORKERS, process.stdout
    return process.stdout


def measure_farandole(kills: int, worker: str) -> dict[str, list[float]]:
    command = str(Path(sys.executable).with_name("farandole"))
    words = [command, "run", "-n", str(WORKERS), "--min-workers", "2", "--cooldown-range", "0,0"]
    program = [sys.executable, __file__, "--worker", worker, "--kills", str(kills)]
    text = output_of([*words, *program], "equal")
    return {
        kind: [float(ms) for ms in re.findall(rf"gap {kind} ([\d.]+)", text)]
        for kind in ("killed", "joined", "first")
    }


def measure_torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", folder]
        words += ["--nproc-per-node", str(WORKERS), "--max-restarts", "1"]
        text = output_of([*words, __file__, "--worker", "torchrun"], "finished")
    last_step_before = max(float(seconds) for seconds in re.findall(r"before ([\d.]+)", text))
    steps_after = [float(seconds) for seconds in re.findall(r"after ([\d.]+)", text)]
    return 1000 * (steps_after[0] - last_step_before)


def row(name: str, values: list[float]) -> str:
    return f"{name:<42} {len(values):>5} {statistics.median(values):>9.0f} {max(values):>9.0f}"


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker == "farandole":
        return train_elastically(arguments.kills)
    if arguments.worker == "jax":
        return train_with_jax(arguments.kills)
    if arguments.worker == "torchrun":
        return train_with_torchrun()
    gaps: dict[str, list[float]] = {"killed": [], "joined": [], "first": []}
    restarts = []
    for _ in range(arguments.rounds):
        worker = "jax" if arguments.jax else "farandole"
        for kind, values in measure_farandole(arguments.kills, worker).items():
            gaps[kind] += values
        if not arguments.jax:
            restarts.append(measure_torchrun())
    print(f"{'milliseconds without a step':<42} {'gaps':>5} {'median':>9} {'longest':>9}")
    print(row("Farandole, a worker is killed", gaps["killed"]))
    print(row("Farandole, a worker joins", gaps["joined"]))
    if arguments.jax:
        print(row("the first step of a worker", gaps["first"]))
        first_step_ms = statistics.median(gaps["first"])
        for kind in ("killed", "joined"):
            print(f"{kind}: {statistics.median(gaps[kind]) / first_step_ms:.2f} of the first step")
    else:
        print(row("torchrun, a worker is killed (see --help)", restarts))
    return None


if __name__ == "__main__":
    main()
