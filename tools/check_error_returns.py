#!/usr/bin/env python3
"""Check that tests reach every statement that makes an error. The check covers only some rooms.

The check reads the counts of the preset `coverage` (`./dev test coverage`). An error that no test
reaches must be listed in tests/unreached_errors.txt with the reason. The check also fails if a test
reaches a listed error, or if a listed error no longer exists. If only some runs reach an error, its
reason begins with "sometimes: ".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from region_counts import FileCounts, RegionCounts, read_region_counts

ROOT = Path(__file__).resolve().parent.parent
ROOMS = tuple(
    """channels control coordination driver elastic engine formation hosts jobs launcher network
    nodes output probe remote rendezvous stalls submission transport workers""".split()
)
ERROR = re.compile(r"\bStatus::(?:fix_call|retry|rebuild_group|stop)\(")
SOMETIMES = "sometimes: "
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|[()]')


@dataclass
class ErrorReturn:
    """One call that makes an error: its position, its text in one line, and whether a test reached
    it."""

    path: str
    line: int
    text: str
    reached: bool


@dataclass
class Excuse:
    path: str
    text_part: str  # a distinctive part of the error's text
    reason: str


def end_of_call(source: str, opening: int) -> int:
    """Return the position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for token in TOKEN.finditer(source, opening):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise SystemExit(f"a call has no closing parenthesis: {source[opening : opening + 60]!r}")


def error_returns(path: str, source: str, counts: RegionCounts) -> Iterator[ErrorReturn]:
    file = counts.get(path, FileCounts())
    for match in ERROR.finditer(source):
        start = source.rfind("\n", 0, match.start()) + 1
        text = source[start : end_of_call(source, match.end() - 1)]
        line = source.count("\n", 0, match.start()) + 1
        is_reached = file.has_run(line, match.start() - start + 1)
        yield ErrorReturn(path, line, re.sub(r"\s+", " ", text).strip(), is_reached)


def is_checked(path: Path) -> bool:
    return path.suffix in (".cc", ".h") and not path.stem.endswith("_test")


def all_error_returns(root: Path, counts: RegionCounts) -> Iterator[ErrorReturn]:
    for room in ROOMS:
        for path in sorted((root / "src" / room).rglob("*")):
            if is_checked(path):
                name = path.relative_to(root).as_posix()
                yield from error_returns(name, path.read_text(), counts)


def parse_excuses(text: str) -> Iterator[Excuse]:
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            fields = [field.strip() for field in line.split(" | ")]
            if len(fields) != 3 or not all(fields):
                raise SystemExit(f"not `path | part of the line | reason`: {line}")
            yield Excuse(*fields)


def violations(errors: list[ErrorReturn], excuses: list[Excuse]) -> Iterator[str]:
    excused_lines = set()
    for excuse in excuses:
        where = f"tests/unreached_errors.txt: {excuse.path} | {excuse.text_part}"
        matching = [e for e in errors if e.path == excuse.path and excuse.text_part in e.text]
        if len(matching) != 1:
            yield f"{where}: {len(matching)} errors hold this text; it must be one"
        elif matching[0].reached and not excuse.reason.startswith(SOMETIMES):
            yield f"{where}: a test reaches this error; remove the line"
        else:
            excused_lines.add((excuse.path, matching[0].line))
    for error in errors:
        if not error.reached and (error.path, error.line) not in excused_lines:
            yield f"{error.path}:{error.line}: no test reaches this error: {error.text[:160]}"


def check(root: Path, counts: RegionCounts) -> int:
    """Print what is wrong, and return how many errors there are."""
    errors = list(all_error_returns(root, counts))
    excuses = list(parse_excuses((root / "tests/unreached_errors.txt").read_text()))
    messages = list(violations(errors, excuses))
    print("", *messages, sep="\n")
    print(f"errors: {len(errors)} returns, {len(excuses)} excused, {len(messages)} violations")
    return len(messages)


if __name__ == "__main__":
    sys.exit(1 if check(ROOT, read_region_counts(ROOT, ROOT / "build/coverage")) else 0)
