#!/usr/bin/env python3
"""Run the unit tests and the simulator in the preset `coverage`, and print which lines they reach.

The script fails if a test fails, if the tests reach fewer lines of src than the floor, or if
check_error_returns.py fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import check_error_returns
from region_counts import RegionCounts, profile_folder, profile_variables, read_region_counts

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/coverage"
FLOOR_PERCENT = 90


def room_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def table(counts: RegionCounts) -> tuple[list[str], float]:
    """Return the rows to print, and the percentage for src as a whole."""
    rooms: dict[str, tuple[int, int]] = {}
    for path, file in counts.items():
        for name in (room_of(path), "src") if path.startswith("src/") else (room_of(path),):
            lines_so_far, covered_so_far = rooms.get(name, (0, 0))
            rooms[name] = (lines_so_far + file.lines, covered_so_far + file.covered_lines)
    total, reached = rooms.get("src", (0, 0))
    percentages = {name: 100 * covered / max(1, lines) for name, (lines, covered) in rooms.items()}
    rows = [f"  {'room':<20} {'lines':>6} {'covered':>8} {'%':>6}"]
    for name in sorted(rooms):
        rows.append(
            f"  {name:<20} {rooms[name][0]:>6} {rooms[name][1]:>8} {percentages[name]:6.1f}"
        )
    return rows, 100 * reached / max(1, total)


def run_tests() -> bool:
    """Delete the old counts, and then run the tests."""
    shutil.rmtree(profile_folder(BUILD), ignore_errors=True)
    options = ("--output-on-failure", "--no-tests=error", "-j2", "-L", "^(unit|sim)$")
    command = ("ctest", "--test-dir", BUILD, *options)
    variables = os.environ | profile_variables(BUILD)
    return subprocess.run(command, check=False, env=variables).returncode == 0


def main() -> None:
    subprocess.run((ROOT / "dev", "build", "coverage"), check=True)
    tests_have_passed = run_tests()
    counts = read_region_counts(ROOT, BUILD)
    rows, percentage = table(counts)
    print("", *rows, sep="\n")
    error_count = check_error_returns.check(ROOT, counts)
    if percentage < FLOOR_PERCENT:
        print(f"coverage: {percentage:.1f} % of src is less than {FLOOR_PERCENT} %")
    sys.exit(0 if tests_have_passed and not error_count and percentage >= FLOOR_PERCENT else 1)


if __name__ == "__main__":
    main()
