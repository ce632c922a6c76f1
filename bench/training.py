#!/usr/bin/env python3
"""Measure how fast two ranks train, compared with DDP on Gloo and with an upper bound.

The bound is the speed of two independent processes that do the same computation but send no data.

Run `.venv/bin/python bench/training.py` after `./dev test python` has installed the package. In
each round, three models are trained in every way. The results are the medians of the ratios within
a round, with their 95 % intervals. Each rank has one torch thread. The script checks that ranks
that train together end with the same parameters, bit by bit, and with the same loss as with DDP.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare import machine_facts
from contenders import ROOT
from ratios import speedup
from report import aligned

# The measurements of one round, by model and then by way of training.
Round = dict[str, dict[str, dict[str, float]]]

MODELS = ("cnn", "mlp", "embedding")
LOSS_TOLERANCE = 1e-3
# The required speed of our optimizer, relative to DDP and to the bound.
REQUIRED_SPEEDS = {"cnn": (1.0, 0.95), "mlp": (1.3, None), "embedding": (1.0, None)}
DDP_REQUIRED_SPEED = 1.0  # required speed of DDP on Farandole, relative to DDP on Gloo
STRETCH_SPEED = 0.98  # a more ambitious goal for our speed, relative to the bound


def run(rounds: int, models: list[str]) -> list[Round]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rounds"
        worker = str(Path(__file__).with_name("training_worker.py"))
        command = [str(Path(sys.executable).parent / "farandole"), "run", "-n", "2"]
        command += [sys.executable, worker, str(file), str(rounds), *models]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return [json.loads(line) for line in file.read_text().splitlines()]


def series(rounds: list[Round], model: str, way: str) -> list[float]:
    return [measured[model][way]["seconds"] for measured in rounds]


def check_losses(ways: dict[str, dict[str, float]]) -> None:
    """Check that all ways in which the ranks train together end with the same loss."""
    ddp_loss = ways["DDP, Gloo"]["loss"]
    for way in set(ways) - {"one process", "independent"}:
        loss = ways[way]["loss"]
        if abs(loss - ddp_loss) > LOSS_TOLERANCE * abs(ddp_loss):
            raise SystemExit(f"{way}: the loss is {loss}, but DDP has {ddp_loss}")


def summary(rounds: list[Round], model: str) -> Iterator[dict[str, Any]]:
    theirs, bound = (series(rounds, model, way) for way in ("DDP, Gloo", "independent"))
    for way in rounds[0][model]:
        times = series(rounds, model, way)
        yield {
            "model": model,
            "way": way,
            "steps_per_s": 1 / statistics.median(times),
            "of_ddp": speedup(times, theirs),
            "of_bound": speedup(times, bound),
        }


def lines(model: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"### {model}"
    yield ""
    head = ["way", "steps/s", "of DDP, Gloo [95 %]", "of the bound [95 %]"]
    cells = [
        [row["way"], f"{row['steps_per_s']:.1f}", str(row["of_ddp"]), str(row["of_bound"])]
        for row in rows
    ]
    yield from aligned([head, *cells])
    [ours] = [row for row in rows if row["way"] == "ours"]
    of_ddp, of_bound = REQUIRED_SPEEDS[model]
    reached = ours["of_ddp"].middle >= of_ddp and ours["of_bound"].middle >= (of_bound or 0)
    wanted = f"{of_ddp} of DDP" + (f" and {of_bound} of the bound" if of_bound else "")
    stretch = "reached" if ours["of_bound"].middle >= STRETCH_SPEED else "not reached"
    yield ""
    must = "reached" if reached else "**not reached**"
    yield f"Must, {wanted}: {must}. Stretch, {STRETCH_SPEED}: {stretch}."
    [ddp] = [row for row in rows if row["way"] == "DDP, ours"]
    reached = ddp["of_ddp"].middle >= DDP_REQUIRED_SPEED
    yield f"Must, DDP over us ≥ DDP over Gloo: {'reached' if reached else '**not reached**'}."
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"{' '.join(MODELS)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/training.json")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"no model {unknown.pop()!r}; there are {' '.join(MODELS)}")
    models = arguments.models or list(MODELS)
    rounds = run(arguments.rounds, models)
    for ways in (measured[model] for measured in rounds for model in models):
        check_losses(ways)
    rows = {model: list(summary(rounds, model)) for model in models}
    for model in models:
        print(*lines(model, rows[model]), sep="\n")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine_facts(), "rounds": rounds, "rows": rows}
    arguments.json.write_text(json.dumps(content, indent=1, default=vars) + "\n")
    print(f"Everything as JSON: {arguments.json}")


if __name__ == "__main__":
    main()
