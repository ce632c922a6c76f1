"""Read clang's counts of a build with the preset `coverage`: how often each region of our code ran.

A test program keeps its counts in a file that it maps into its memory. So the counts exist even if
the program is killed or ends by _exit. All processes of one program share one file.
"""

from __future__ import annotations

import json
import os
import subprocess
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FileCounts:
    """The counts of one source file, over all programs and template instances that contain it."""

    lines: int = 0
    covered_lines: int = 0
    # (line, column, count): from this place to the next one, the code ran `count` times. The count
    # is 0 where there is no code. Lines and columns begin at 1.
    starts: list[tuple[int, int, int]] = field(default_factory=list)

    def has_run(self, line: int, column: int) -> bool:
        """Return whether the code at this place ran at least once."""
        index = bisect_right(self.starts, (line, column), key=lambda start: start[:2])
        return index > 0 and self.starts[index - 1][2] > 0


# The counts of each file. The keys are paths from the root.
RegionCounts = dict[str, FileCounts]


def is_counted(path: str) -> bool:
    """Tell whether a file is counted. Tests, and files that only tests use, are not counted.
    The command and the bindings are not counted either, because only tests in Python run them, and
    this build runs no tests in Python."""
    shipped = path.startswith(("src/", "include/"))
    name = path.rsplit("/", 1)[-1]
    tests = ("_test.cc", "_in_test.h", "_in_test.cc")
    return shipped and not name.endswith(tests)


def path_from_root(file: str, root: Path, build: Path) -> str:
    """Return a source's path from the root, or '' if it is not ours. The compiler got the path
    relative to the folder of the build."""
    path = (build / file).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""


def counts_of_document(document: dict[str, Any], root: Path, build: Path) -> RegionCounts:
    """Return the counts in the output of `llvm-cov export`."""
    counts: RegionCounts = {}
    for file in document["data"][0]["files"]:
        name = path_from_root(file["filename"], root, build)
        if is_counted(name):
            summary = file["summary"]["lines"]
            starts = [
                (line, column, count if has_count else 0)
                for line, column, count, has_count, *_ in file["segments"]
            ]
            counts[name] = FileCounts(summary["count"], summary["covered"], starts)
    return counts


def programs_of(build: Path) -> Iterator[Path]:
    for path in sorted((*build.glob("src/**/*"), *build.glob("tests/**/*"))):
        if path.is_file() and not path.suffix and os.access(path, os.X_OK):
            yield path


def profile_folder(build: Path) -> Path:
    return build / "profiles"


def profile_variables(build: Path) -> dict[str, str]:
    """Return the environment variables of test programs. In the name of the file of counts, %c maps
    the file into memory, and %m gives each program its own file."""
    return {"LLVM_PROFILE_FILE": f"{profile_folder(build)}/%c%m.profraw"}


def read_region_counts(root: Path, build: Path) -> RegionCounts:
    profiles = sorted(profile_folder(build).glob("*.profraw"))
    if not profiles:
        raise SystemExit(f"no counts in {profile_folder(build)}: run `./dev test coverage` first")
    merged = profile_folder(build) / "all.profdata"
    subprocess.run(("llvm-profdata-19", "merge", "-o", merged, *profiles), check=True)
    objects = [f"-object={program}" for program in programs_of(build)]
    command = ("llvm-cov-19", "export", "-skip-expansions", "-skip-functions")
    result = subprocess.run(
        (*command, f"-instr-profile={merged}", *objects), check=True, stdout=subprocess.PIPE
    )
    return counts_of_document(json.loads(result.stdout), root, build)
