#!/usr/bin/env python3
"""Plant one bug at a time in a copy of the sources, and run the tests of the bug's own room.

A bug that no test finds is a hole in the tests. mutants.toml lists the bugs: a file, a text that
occurs in the file exactly once, the text that replaces it, and the tests that have to fail. `tests`
is the name of a compiled test program, or arguments for pytest, which start with `python/`.

The script exits with 1 if no test finds a bug, if the text of a bug no longer occurs in its file,
or if tests fail without any bug.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import tomllib  # type: ignore[import-not-found]  # mypy looks at Python 3.10, which users may have

from presets import is_configured

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build/mutants/tree"
SITE = ROOT / "build/mutants/site"
PACKAGES = ("farandole", "horovod")  # the packages that the Python tests import
# A test that hangs because of a bug has found the bug. The limit is a multiple of the test's time
# without a bug, but at least TIMEOUT_MIN_S.
TIMEOUT_FACTOR, TIMEOUT_MIN_S = 10, 60


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: str
    quick: bool = False  # whether CI plants this bug

    @property
    def in_python(self) -> bool:
        return self.tests.startswith(("python/", "tests/"))


class BuildError(Exception):
    pass


def read_mutants(text: str) -> list[Mutant]:
    """Return the bugs in the text of a mutants.toml. Raises ValueError if two share a name."""
    mutants = [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]
    names = [mutant.name for mutant in mutants]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two bugs have the name {', '.join(sorted(repeated))}")
    return mutants


def with_bug(mutant: Mutant, source: str) -> str:
    """Return the source with the bug. Raises ValueError unless the text occurs exactly once."""
    count = source.count(mutant.find)
    if count != 1:
        raise ValueError(f"{mutant.file} contains the text to replace {count} times, not once")
    return source.replace(mutant.find, mutant.replace)


def copy_sources() -> None:
    """Make the tree equal to the checkout. Equal files keep their times, so little is rebuilt."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    git_output = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    wanted_files = {name for name in git_output.split("\0") if name and (ROOT / name).is_file()}
    for name in wanted_files:
        source, copy = ROOT / name, TREE / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for folder in ("include", "src", "apps", "tests", "bench", "python"):
        for copy in (TREE / folder).rglob("*"):
            if copy.is_file() and str(copy.relative_to(TREE)) not in wanted_files:
                copy.unlink()


def run(command: list[str], timeout: float | None = None, **variables: str) -> bool:
    """Return whether the command exits with 0 in time. At the end, kill all its children."""
    process = subprocess.Popen(
        command,
        cwd=TREE,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        subprocess.run(("pkill", "-KILL", "-s", str(process.pid)), check=False)
        process.wait()


def build(target: str) -> None:
    if not run(["cmake", "--build", "build/dev", "--target", target], CCACHE_BASEDIR=str(TREE)):
        raise BuildError(target)


def tests_pass(mutant: Mutant, timeout: float | None = None) -> bool:
    if mutant.in_python:
        for package in PACKAGES:
            shutil.copytree(TREE / "python" / package, SITE / package, dirs_exist_ok=True)
        words = [sys.executable, "-m", "pytest", "-q", "-x", *mutant.tests.split()]
        return run(words, timeout, PYTHONPATH=str(SITE))
    build(mutant.tests)
    program = next((TREE / "build/dev").rglob(mutant.tests))
    return run([str(program), "--gtest_fail_fast", "--gtest_brief=1"], timeout)


def prepare(mutants: list[Mutant]) -> dict[str, float]:
    """Build everything without a bug, and return how long each test takes, in seconds."""
    copy_sources()
    if any(mutant.in_python for mutant in mutants):
        # Copy the packages that `./dev test python` has installed, with their compiled modules.
        for package in PACKAGES:
            installed = Path(sysconfig.get_path("purelib")) / package
            shutil.copytree(installed, SITE / package, dirs_exist_ok=True)
    needs_build = not all(mutant.in_python for mutant in mutants)
    must_configure = needs_build and not is_configured(TREE, "dev")
    if must_configure and not run(["cmake", "--fresh", "--preset", "dev"]):
        raise SystemExit("the copy of the sources cannot be configured")
    seconds = {}
    for mutant in {mutant.tests: mutant for mutant in mutants}.values():
        if not mutant.in_python:
            build(mutant.tests)
        start = time.monotonic()
        if not tests_pass(mutant):
            raise SystemExit(f"{mutant.tests} fails without any bug")
        seconds[mutant.tests] = time.monotonic() - start
        print(f"  {mutant.tests:<60} {seconds[mutant.tests]:6.1f} s without a bug", flush=True)
    return seconds


def outcome_of(mutant: Mutant, seconds: float) -> str:
    path = TREE / mutant.file
    original = path.read_text()
    try:
        path.write_text(with_bug(mutant, original))
        is_found = not tests_pass(mutant, max(TIMEOUT_MIN_S, TIMEOUT_FACTOR * seconds))
    except BuildError:
        return "does not build"
    except (OSError, ValueError) as problem:
        return str(problem)
    finally:
        path.write_text(original)
    return "found" if is_found else "SURVIVED"


def chosen(mutants: list[Mutant], names: list[str], quick: bool) -> list[Mutant]:
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        raise SystemExit(f"mutants.toml has no bug with the name {sorted(unknown)[0]!r}")
    return [
        mutant
        for mutant in mutants
        if (not names or mutant.name in names) and (mutant.quick or not quick)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="plant only these bugs; default: all")
    parser.add_argument("--quick", action="store_true", help="only the few bugs that CI plants")
    arguments = parser.parse_args()
    mutants = read_mutants((ROOT / "tools/mutants.toml").read_text())
    mutants = chosen(mutants, arguments.names, arguments.quick)
    seconds = prepare(mutants)
    found_count = 0
    for number, mutant in enumerate(mutants, 1):
        start = time.monotonic()
        outcome = outcome_of(mutant, seconds[mutant.tests])
        found_count += outcome == "found"
        elapsed = time.monotonic() - start
        print(
            f"  {number:>3}/{len(mutants)} {mutant.name:<56} {elapsed:6.1f} s  {outcome}",
            flush=True,
        )
    print(f"{found_count} of {len(mutants)} planted bugs were found")
    return 0 if found_count == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
