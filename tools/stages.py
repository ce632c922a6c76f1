"""Run the stages of `./dev ci` and `./dev test`, and print the outcomes at the very end.

Tools that show a log often show only its end. So the output of a stage also goes to a file, and the
errors of compilers and the last lines of failed stages are printed again below the table.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Stages = dict[str, Callable[[], object]]  # the functions that run the stages, by name

# When `./dev ci` has run for this time, it starts no further stage. A stage may take 20 minutes on
# a slow machine.
CI_LIMIT_S = 65 * 60
REPEATED_LINES, REPEATED_ERRORS, REPEATED_COLUMNS = 60, 10, 300
OUTPUT_WAIT_S = 5


def chosen_stages(names: Sequence[str], stages: Stages, groups: dict[str, Stages]) -> Stages:
    """Return the stages with these names. A name may also stand for a group of stages."""
    if unknown := set(names) - set(stages) - set(groups):
        known = " ".join([*groups, *stages])
        raise SystemExit(f"no test label {unknown.pop()!r}; there are: {known}")
    result: Stages = {}
    for name in names:
        result |= groups.get(name) or {name: stages[name]}
    return result


def run_stages(stages: Stages, logs: Path, limit_s: float = math.inf) -> int:
    """Run all stages even if one fails, and print a table: outcomes, wall times, and how many cores
    the processes of a stage used on average. Processes whose parents did not wait for their end are
    not counted.

    After `limit_s` seconds, no further stage begins. The table and its last line name the stages
    that did not run.

    Return how many failed. The output of each stage goes to a file with its name in `logs`.
    """
    rows, failed, left_out = [], [], []
    first_start = time.monotonic()
    for name, stage in stages.items():
        start, used = time.monotonic(), core_seconds()
        if start - first_start >= limit_s:
            left_out.append(name)
            rows.append(f"  {name:<11} not run")
            continue
        print(f"[dev] === {name}", flush=True)
        passed = run_one(stage, logs / f"{name}.log")
        if not passed:
            failed.append(name)
        wall, used = time.monotonic() - start, core_seconds() - used
        row = f"  {name:<11} {outcome_of(passed):<7} {wall:7.1f} s {used / wall:5.1f} cores"
        rows.append(row)
    print("", *rows, sep="\n")
    for name in failed:
        errors, end = errors_and_last_lines(logs / f"{name}.log")
        print(f"\n[dev] === {name} FAILED", *errors, "it ended with", *end, "", sep="\n")
    summary = f"{len(rows) - len(failed) - len(left_out)} passed, {len(failed)} failed"
    if left_out:
        summary += f", not run after {limit_s / 60:.0f} minutes: ./dev test {' '.join(left_out)}"
    print(summary, flush=True)
    return len(failed)


def core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def outcome_of(passed: bool) -> str:
    return "ok" if passed else "FAILED"


def run_one(stage: Callable[[], object], log: Path) -> bool:
    log.parent.mkdir(parents=True, exist_ok=True)
    with copying_output_to(log):
        try:
            stage()
        except (SystemExit, OSError) as failure:
            print(failure, flush=True)
            return False
    return True


@contextmanager
def copying_output_to(log: Path) -> Iterator[None]:
    """Copy the output of this process and its children to `log`, and show the output as usual.

    A child may still write after the end of its stage. This function waits only briefly for such a
    child.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    originals = os.dup(1), os.dup(2)
    tee = subprocess.Popen(["tee", "--ignore-interrupts", log], stdin=subprocess.PIPE)
    assert tee.stdin is not None
    try:
        for number in (1, 2):
            os.dup2(tee.stdin.fileno(), number)
        tee.stdin.close()
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in enumerate(originals, start=1):
            os.dup2(original, number)
            os.close(original)
        try:
            tee.wait(OUTPUT_WAIT_S)
        except subprocess.TimeoutExpired:
            print("[dev] a process of this stage still runs", flush=True)


def errors_and_last_lines(log: Path) -> tuple[list[str], list[str]]:
    """Return the first compiler errors that are not among the last lines, and the last lines."""
    text = log.read_text(errors="replace")
    lines = [line[:REPEATED_COLUMNS] for line in text.rstrip().split("\n")]
    errors = [line for line in lines[:-REPEATED_LINES] if ": error: " in line]
    return errors[:REPEATED_ERRORS], lines[-REPEATED_LINES:]
