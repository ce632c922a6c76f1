#!/usr/bin/env python3
"""Measure whether a cycle of init and shutdown takes longer after many earlier cycles.

`python bench/cycles.py [CYCLES]` runs a job of two workers that repeat init, two barriers and
shutdown. It prints JSON: the median time of a cycle in the second hundred of cycles and in the last
hundred, the ratios of the last hundred to the second hundred, the commit and the machine.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import farandole
from farandole import calls

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
SAMPLE_CYCLES = 100


def worker(cycles: int) -> None:
    durations = []
    for _ in range(cycles):
        begin = time.perf_counter()
        farandole.init()
        calls.barrier()
        calls.barrier()
        farandole.shutdown()
        durations.append(time.perf_counter() - begin)
    print(json.dumps([round(1e6 * duration) for duration in durations]))


def farandole_command() -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = os.environ.get("FARANDOLE_COMMAND") or shutil.which("farandole", path=path)
    if command is None:
        raise SystemExit("the farandole command is not installed")
    return command


def measure(cycles: int) -> dict[str, object]:
    program = (sys.executable, __file__, "--worker", str(cycles))
    job = subprocess.run(
        (farandole_command(), "run", "-n", str(WORKERS), *program),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = next(line for line in job.stdout.splitlines() if line.startswith("[0] "))
    microseconds = json.loads(line.removeprefix("[0] "))
    second_hundred, last_hundred = (
        microseconds[SAMPLE_CYCLES : 2 * SAMPLE_CYCLES],
        microseconds[-SAMPLE_CYCLES:],
    )
    # On a busy machine, the first quartile is more reliable than the median.
    quartiles = [statistics.quantiles(hundred, n=4) for hundred in (second_hundred, last_hundred)]
    return {
        "cycles": cycles,
        "workers": WORKERS,
        "second_hundred_median_us": round(quartiles[0][1]),
        "last_hundred_median_us": round(quartiles[1][1]),
        "ratio_of_medians": round(quartiles[1][1] / quartiles[0][1], 3),
        "ratio_of_first_quartiles": round(quartiles[1][0] / quartiles[0][0], 3),
    }


def machine_facts() -> dict[str, object]:
    git = ("git", "-C", ROOT, "describe", "--always", "--dirty")
    commit = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
    return {
        "commit": commit,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]))
    else:
        print(
            json.dumps(
                measure(int(sys.argv[1]) if sys.argv[1:] else 1000) | machine_facts(), indent=2
            )
        )
