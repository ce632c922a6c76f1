#!/usr/bin/env python3
"""Build the preset `coverage`, run the tests in it, and print which of our lines they reach.

Fails if a test fails twice, if fewer lines of src are reached than the floor, and if no test
returns one of the errors (check_error_returns.py). Processes that are killed leave no counts. A
failed test runs a second time, because this build is slow and only its counts matter here: the
other labels require that tests pass the first time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import check_error_returns
from line_counts import LineCounts, read_line_counts

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/coverage"
FLOOR_PERCENT = 90
PYTHON_TESTS = ("python/tests", "tests/cluster", "--ignore=tests/cluster/test_examples.py")


def room_of(path: str) -> str:
    parts = path.split("/")
    return parts[0] if parts[0] == "apps" else "/".join(parts[:2])


def table(counts: LineCounts) -> tuple[list[str], float]:
    """Return the rows to print, and the percentage for src as a whole."""
    rooms: dict[str, tuple[int, int]] = {}
    for path, lines in counts.items():
        covered = sum(line.count > 0 for line in lines.values())
        for name in (room_of(path), "src") if path.startswith("src/") else (room_of(path),):
            before = rooms.get(name, (0, 0))
            rooms[name] = (before[0] + len(lines), before[1] + covered)
    total, reached = rooms.get("src", (0, 0))
    percentages = {name: 100 * covered / max(1, lines) for name, (lines, covered) in rooms.items()}
    rows = [f"  {'room':<20} {'lines':>6} {'covered':>8} {'%':>6}"]
    for name in sorted(rooms):
        rows.append(
            f"  {name:<20} {rooms[name][0]:>6} {rooms[name][1]:>8} {percentages[name]:6.1f}"
        )
    return rows, 100 * reached / max(1, total)


def run_tests() -> bool:
    """Run the tests with the module and the command of this build, after deleting old counts."""
    for counts in BUILD.rglob("*.gcda"):
        counts.unlink()
    package = BUILD / "python/farandole"
    shutil.copytree(ROOT / "python/farandole", package, dirs_exist_ok=True)
    variables = os.environ | {
        "PYTHONPATH": str(package.parent),
        "FARANDOLE_COMMAND": str(BUILD / "apps/farandole/farandole"),
    }

    def passes(*command: str | Path) -> bool:
        return subprocess.run(command, check=False, cwd=ROOT, env=variables).returncode == 0

    compiled = ("ctest", "--test-dir", BUILD, "-L", "^(unit|sim)$", "--output-on-failure", "-j2")
    python = (sys.executable, "-m", "pytest", "-q", *PYTHON_TESTS)
    compiled_pass = passes(*compiled, "--repeat", "until-pass:2")
    return (passes(*python) or passes(*python, "--last-failed")) and compiled_pass


def main() -> None:
    subprocess.run((ROOT / "dev", "build", "coverage"), check=True)
    passed = run_tests()
    counts = read_line_counts(ROOT, BUILD)
    rows, percentage = table(counts)
    print("", *rows, sep="\n")
    wrong = check_error_returns.check(ROOT, counts)
    if percentage < FLOOR_PERCENT:
        print(f"coverage: {percentage:.1f} % of src is less than {FLOOR_PERCENT} %")
    sys.exit(0 if passed and not wrong and percentage >= FLOOR_PERCENT else 1)


if __name__ == "__main__":
    main()
