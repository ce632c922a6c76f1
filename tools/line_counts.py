"""Read gcov's counts of a build with the preset `asan`: how often each of our lines ran."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Objects per gcov process. More would need more memory, because gcov prints the lines of all
# headers once per object.
BATCH = 20


@dataclass
class Line:
    """One line of code, over all programs and template instances that contain it."""

    count: int = 0
    # In at least one program or instance, every part of the line has run.
    ran_completely: bool = False


# By a file's path from the root, then by line number.
LineCounts = dict[str, dict[int, Line]]


def is_counted(path: str) -> bool:
    """Tell whether a file is counted. Tests, and files that only tests use, are not counted.
    The command and the bindings are not counted either, because only tests in Python run them, and
    this build runs no tests in Python."""
    shipped = path.startswith(("src/", "include/"))
    name = path.rsplit("/", 1)[-1]
    tests = ("_test.cc", "_in_test.h", "_in_test.cc")
    return shipped and not name.endswith(tests)


def relative(file: str, root: Path, build: Path) -> str:
    """Return a source's path from the root; gcov prints it as the compiler got it."""
    path = (build / file).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""


def merge(documents: Iterable[dict[str, Any]], root: Path, build: Path) -> LineCounts:
    counts: LineCounts = {}
    for document in documents:
        for file in document["files"]:
            path = relative(file["file"], root, build)
            if not is_counted(path):
                continue
            lines = counts.setdefault(path, {})
            for entry in file["lines"]:
                line = lines.setdefault(entry["line_number"], Line())
                line.count += entry["count"]
                line.ran_completely |= entry["count"] > 0 and not entry["unexecuted_block"]
    return counts


def gcov(build: Path) -> Iterator[dict[str, Any]]:
    notes = sorted(build.rglob("*.gcno"))
    if not notes:
        raise SystemExit(f"no counts in {build}: build the preset `asan` first")
    for start in range(0, len(notes), BATCH):
        command = ("gcov", "--json-format", "--stdout", *map(str, notes[start : start + BATCH]))
        answer = subprocess.run(
            command, check=True, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for text in answer.stdout.splitlines():
            yield json.loads(text)


def read_line_counts(root: Path, build: Path) -> LineCounts:
    return merge(gcov(build), root, build)
