#!/usr/bin/env python3
"""Compare Farandole with MPI, Gloo and the limits of the machine. In one run, all of them are
measured in turn.

`./dev bench [GOAL…]` builds the programs and runs this script. For each comparison, the script
prints a Markdown table, whether the thresholds are reached, and the commands. It also writes all
results as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import contenders
import report
import rounds
import svg_plot
from contenders import ROOT, Task
from goals import GOALS, Comparison, comparisons_of
from report import Outcome
from rounds import Entry


class Progress:
    """A progress line on a terminal. It prints nothing if the output is not a terminal."""

    def __init__(self, title: str) -> None:
        self.title, self.begin = title, time.monotonic()
        self.is_shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self.is_shown:
            seconds = time.monotonic() - self.begin
            line = f"{self.title}: {text} ({seconds:.0f} s)"
            print(f"\r\033[K{line[:118]}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def mpi_entries(comparison: Comparison, cores: int, progress: Progress) -> list[Entry]:
    candidates = contenders.mpi(comparison.task, cores)
    with rounds.busy_processes(comparison.busy):
        trial_times = rounds.try_settings(candidates, comparison.task, progress)
    if not trial_times:
        raise SystemExit("no MPI library works here; ./dev bench installs both")
    sizes_by_setting = rounds.settings_worth_a_round(trial_times, comparison.task.sizes)
    return [
        Entry("mpi", setting, comparison.task, sizes) for setting, sizes in sizes_by_setting.items()
    ]


def gloo_entries(comparison: Comparison, progress: Progress) -> list[Entry]:
    trial_times = rounds.try_settings(
        contenders.gloo(comparison.task.ranks), comparison.task, progress
    )
    best_setting = min(trial_times, key=lambda setting: sum(trial_times[setting].values()))
    return [Entry("gloo", best_setting, comparison.task, comparison.task.sizes)]


def entries_of(comparison: Comparison, cores: int, progress: Progress) -> list[Entry]:
    task, ranks = comparison.task, comparison.task.ranks
    ours = contenders.ours(ranks, *(("--memory", "heap") if comparison.heap else ()))
    entries = [Entry("ours", ours, task, task.sizes)]
    if "float32" in comparison.peers:
        float32_task = Task(sizes=task.sizes, ranks=ranks, flags=task.flags, seconds=task.seconds)
        entries.append(Entry("float32", ours, float32_task, task.sizes))
    if "mpi" in comparison.peers:
        entries += mpi_entries(comparison, cores, progress)
    if "gloo" in comparison.peers:
        entries += gloo_entries(comparison, progress)
    if "memcpy" in comparison.peers:
        entries.append(Entry("memcpy", contenders.memcpy(ranks), task.as_copy_task(), task.sizes))
    return entries


def compare(comparison: Comparison, cores: int, count: int) -> Outcome:
    progress = Progress(f"{comparison.goal} {comparison.title}")
    entries = entries_of(comparison, cores, progress)
    all_rounds = rounds.run_rounds(entries, comparison.busy, count, progress)
    progress.end()
    quiet_rounds = rounds.quiet_rounds(all_rounds)
    return report.outcome_of(comparison, entries, quiet_rounds, len(all_rounds) - len(quiet_rounds))


def machine_facts() -> dict[str, Any]:
    def output_of(*command: str) -> str:
        process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        return process.stdout.strip()

    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "commit": output_of("git", "describe", "--always", "--dirty"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": output_of(
            "sh", "-c", "lscpu | sed -n 's/^L\\(.*\\) cache: */L\\1 /p' | paste -sd,"
        ),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
        "kernel": platform.release(),
        "compiler": output_of("sh", "-c", "c++ --version | head -1"),
        "open_mpi": output_of("sh", "-c", "mpirun.openmpi --version | head -1"),
        "mpich": output_of("sh", "-c", "mpichversion | head -1 | tr -s '\\t ' ' '"),
        "torch": output_of(sys.executable, "-c", "import torch; print(torch.__version__)"),
    }


def markdown_of(outcomes: list[Outcome], machine: dict[str, Any]) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    for outcome in outcomes:
        lines += [*report.lines_of(outcome), ""]
        lines += ["```sh", *report.command_lines(outcome), "```", ""]
    return "\n".join(lines)


def curves_of(outcomes: list[Outcome]) -> dict[str, dict[int, float]]:
    """Return the times of all plain allreduce tasks of two ranks in ordinary memory, by library and
    size."""
    curves: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        task = outcome.comparison.task
        if (task.operation, task.ranks, task.flags) != (
            "allreduce",
            2,
            (),
        ) or outcome.comparison.busy:
            continue
        for entry in outcome.entries:
            for size in entry.sizes if entry.family in ("ours", "mpi", "gloo") else ():
                times = report.series(entry, size, outcome.rounds, tail=False)
                curve = curves.setdefault(entry.contender.library, {})
                curve[size] = min(curve.get(size, float("inf")), statistics.median(times))
    return curves


def write(arguments: argparse.Namespace, outcomes: list[Outcome], machine: dict[str, Any]) -> None:
    """After each comparison, write all results so far, so that an interrupted run does not lose
    these results."""
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "comparisons": [report.as_json(outcome) for outcome in outcomes]}
    arguments.json.write_text(json.dumps(content, indent=1, default=str) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown_of(outcomes, machine))
    curves = curves_of(outcomes)
    if arguments.plot and curves:
        arguments.plot.write_text(svg_plot.plot("allreduce, 2 ranks, ordinary memory", curves))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "goals", nargs="*", metavar="GOAL", help=f"{' '.join(GOALS)} (default: all)"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/compared.json")
    parser.add_argument("--markdown", type=Path, help="the tables and commands, to a file")
    parser.add_argument("--plot", type=Path, help="time against size as SVG, if there is G2 or G3")
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds.ROUNDS,
        help=f"default: {rounds.ROUNDS}; fewer for a first impression",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.goals) - set(GOALS):
        parser.error(f"no goal {unknown.pop()!r}; there are {' '.join(GOALS)}")
    machine = machine_facts()
    cores = machine["cores"]
    outcomes: list[Outcome] = []
    for goal in arguments.goals or GOALS:
        for comparison in comparisons_of(goal):
            outcomes.append(compare(comparison, cores, arguments.rounds))
            print(*report.lines_of(outcomes[-1]), "", sep="\n")
            print(*(f"  $ {line}" for line in report.command_lines(outcomes[-1])), "", sep="\n")
            sys.stdout.flush()
            write(arguments, outcomes, machine)
    print(f"Everything as JSON: {arguments.json}")


if __name__ == "__main__":
    main()
