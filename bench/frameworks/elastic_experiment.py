#!/usr/bin/env python3
"""Train a small residual network on Fashion-MNIST while workers come and go, and compare its
accuracy with that of a fixed number of workers.

A schedule is a list of worker counts, such as 1,2,3. The training runs the same number of steps
with each count. In each step, all workers together use 128 images. So the number of workers changes
the result of a step only by rounding. For each seed, all schedules are run one after another. The
fixed schedule runs with more seeds, to show how much the accuracy varies by chance.

In each run, the script checks that the number of workers was as planned, that the workers used each
image once in each epoch, and that all of them end with the same bits. It repeats one run, which
must end with the same bits as the first time. The noise is the standard deviation of the accuracies
of all runs with a fixed number of workers. For each schedule, the script compares each run with the
fixed run of the same seed, and takes the mean of the differences in accuracy. It fails if this mean
is larger than the noise.

Run it with `.venv/bin/python bench/frameworks/elastic_experiment.py`. It starts the jobs itself, on
this machine, and writes docs/elastic_accuracy.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
for folder in ("bench", "tools", "examples/torch"):
    sys.path.insert(0, str(ROOT / folder))
from fashion_mnist import load  # noqa: E402

from compare import machine_facts  # noqa: E402
from elastic_experiment_plot import Run, Runs, Schedules, draw  # noqa: E402
from elastic_experiment_worker import Plan, list_hosts  # noqa: E402
from progress import say  # noqa: E402
from report import aligned  # noqa: E402

FIXED = "fixed"
SCHEDULES = {
    FIXED: [4],
    "±1": [4, 5, 4, 3, 4],
    "±3": [4, 7, 4, 1, 4],
    "doubling": [1, 2, 4, 8],
    "halving": [8, 4, 2, 1],
}
BATCH_IMAGES = 128
CURVE_POINTS = 8  # the number of points of a curve
RUN_SECONDS_MAX = 600


def schedule(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.partition("=")
    try:
        return name, [int(size) for size in sizes.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like up=1,2,3") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="of each schedule")
    parser.add_argument("--fixed-seeds", type=int, default=5, help="of the fixed schedule")
    parser.add_argument("--images", type=int, default=4096, help="the first ones of the data set")
    parser.add_argument("--test-images", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--schedules",
        type=schedule,
        nargs="+",
        default=list(SCHEDULES.items()),
        metavar="NAME=SIZES",
        help=f"instead of the usual ones, such as up=1,2,3; the first one must be {FIXED}=SIZE",
    )
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/elastic_experiment.json")
    parser.add_argument(
        "--redraw", action="store_true", help="run nothing: show and draw what the JSON file has"
    )
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/elastic_accuracy.svg")
    arguments = parser.parse_args()
    arguments.schedules = dict(arguments.schedules)
    if next(iter(arguments.schedules)) != FIXED:
        parser.error(f"the first schedule must be {FIXED}=SIZE")
    if arguments.fixed_seeds < max(2, arguments.seeds):
        parser.error("--fixed-seeds must be at least 2 and --seeds")
    if arguments.images % BATCH_IMAGES != 0:
        parser.error(f"--images must be a multiple of {BATCH_IMAGES}")
    return arguments


class Experiment:
    """Runs the jobs, whose files are in `folder`."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        self.epochs = arguments.epochs
        self.steps = arguments.epochs * arguments.images // BATCH_IMAGES
        self.schedules: Schedules = arguments.schedules
        images, classes = load(arguments.data, "train", arguments.images).tensors
        test_images, test_classes = load(arguments.data, "t10k", arguments.test_images).tensors
        data = {
            "images": images,
            "classes": classes,
            "test_images": test_images,
            "test_classes": test_classes,
        }
        torch.save({name: tensor.clone() for name, tensor in data.items()}, folder / "data")

    def run(self, name: str, seed: int) -> Run:
        plan = Plan(
            sizes=self.schedules[name],
            steps=self.steps,
            batch_images=BATCH_IMAGES,
            steps_between_points=max(1, self.steps // CURVE_POINTS),
            seed=seed,
            data=str(self.folder / "data"),
            hosts=str(self.folder / "hosts"),
            result=str(self.folder / "result"),
        )
        began = time.monotonic()
        result = result_of(plan, self.folder / "plan")
        if result["sizes"] != [plan.size_at(step) for step in range(plan.steps)]:
            raise SystemExit(f"{name}, seed {seed}: the numbers of workers were {result['sizes']}")
        if result["epochs_checked"] != self.epochs:
            raise SystemExit(f"{name}, seed {seed}: {result['epochs_checked']} epochs were checked")
        seconds = time.monotonic() - began
        run = Run(seed, result["accuracy"], dict(result["curve"]), result["digest"], seconds)
        say(f"{name}, seed {seed}: accuracy {run.accuracy:.4f}, {run.seconds:.0f} s")
        return run


def result_of(plan: Plan, plan_file: Path) -> dict[str, Any]:
    """Run a job, and return what its rank 0 has written."""
    hosts, result = Path(plan.hosts), Path(plan.result)
    plan_file.write_text(json.dumps(vars(plan)))
    list_hosts(hosts, plan.sizes[0])
    result.unlink(missing_ok=True)
    words = [str(Path(sys.executable).with_name("farandole")), "run", "-n", str(plan.sizes[0])]
    words += ["--min-workers", "1", "--max-workers", str(max(plan.sizes))]
    words += ["--host-discovery-script", f"cat {hosts}", sys.executable]
    process = subprocess.run(
        [
            *("timeout", str(RUN_SECONDS_MAX)),
            *words,
            str(Path(__file__).with_name("elastic_experiment_worker.py")),
            str(plan_file),
        ],
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if process.returncode != 0 or not result.exists():
        raise SystemExit(f"a job has failed (exit code {process.returncode}):\n{process.stdout}")
    return dict(json.loads(result.read_text()))


def run_all(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Run all schedules in turn, and repeat the first run of the last schedule. After each run,
    write the results to the JSON file."""
    runs: Runs = {name: [] for name in experiment.schedules}
    content = {"machine": machine_facts(), "schedules": experiment.schedules, "runs": runs}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(max(arguments.seeds, arguments.fixed_seeds)):
        for name, runs_of_schedule in runs.items():
            if seed < (arguments.fixed_seeds if name == FIXED else arguments.seeds):
                runs_of_schedule.append(experiment.run(name, seed))
                arguments.json.write_text(json.dumps(content, indent=1, default=vars) + "\n")
    last_schedule = list(runs)[-1]
    repeated_run = experiment.run(last_schedule, 0)
    if repeated_run.digest != runs[last_schedule][0].digest:
        raise SystemExit(f"{last_schedule}, seed 0: a second run has ended with other bits")
    print(
        f"In all {sum(map(len, runs.values()))} runs, each image was used once in each epoch, and"
    )
    print("the workers ended with the same bits. A repeated run ended with the same bits, too.")


@dataclass
class Comparison:
    """A schedule compared with the fixed number of workers."""

    accuracies: list[float]
    differences: list[float]  # from the accuracy of the fixed run with the same seed
    noise: float  # the standard deviation of the fixed runs

    @property
    def is_within_noise(self) -> bool:
        return abs(statistics.fmean(self.differences)) <= self.noise

    def cells(self) -> list[str]:
        accuracies, differences = self.accuracies, self.differences
        mean = 100 * statistics.fmean(differences)
        return [
            str(len(accuracies)),
            f"{100 * statistics.fmean(accuracies):.2f} %",
            f"{100 * min(accuracies):.2f} to {100 * max(accuracies):.2f} %",
            f"{mean:+.2f} ({100 * min(differences):+.2f} to {100 * max(differences):+.2f})",
            "yes" if self.is_within_noise else "no",
        ]


def compare(runs: Runs) -> dict[str, Comparison]:
    fixed_accuracies = {run.seed: run.accuracy for run in runs[FIXED]}
    noise = statistics.stdev(fixed_accuracies.values())
    return {
        name: Comparison(
            [run.accuracy for run in runs_of_schedule],
            [run.accuracy - fixed_accuracies[run.seed] for run in runs_of_schedule],
            noise,
        )
        for name, runs_of_schedule in runs.items()
    }


def lines_of(runs: Runs, schedules: Schedules) -> Iterator[str]:
    comparisons = compare(runs)
    head = ["schedule", "workers", "runs", "mean accuracy", "lowest to highest"]
    table = [[*head, "difference from the fixed run of the same seed", "within noise"]]
    for name, comparison in comparisons.items():
        cells = [name, ", ".join(map(str, schedules[name])), *comparison.cells()]
        table.append([*cells[:-2], "", ""] if name == FIXED else cells)
    yield from aligned(table)
    noise = 100 * comparisons[FIXED].noise
    yield f"The noise, which is the standard deviation of the fixed runs, is {noise:.2f} points."


def saved_runs(content: dict[str, Any]) -> Runs:
    """Return the runs in the JSON file."""
    runs: Runs = {}
    for name, rows in content["runs"].items():
        curves = [{int(step): value for step, value in run["curve"].items()} for run in rows]
        pairs = zip(rows, curves, strict=True)
        runs[name] = [Run(**{**run, "curve": curve}) for run, curve in pairs]
    return runs


def main() -> None:
    arguments = parse_arguments()
    if not arguments.redraw:
        with tempfile.TemporaryDirectory() as folder:
            run_all(Experiment(arguments, Path(folder)), arguments)
    content = json.loads(arguments.json.read_text())
    runs, schedules = saved_runs(content), content["schedules"]
    print(*lines_of(runs, schedules), sep="\n")
    arguments.plot.write_text(draw(runs, schedules))
    print(f"Everything as JSON: {arguments.json}")
    if not all(one.is_within_noise for one in compare(runs).values()):
        raise SystemExit("the accuracy of a schedule is not within noise of the fixed one")


if __name__ == "__main__":
    main()
