#!/usr/bin/env python3
"""Check that functions, files and rooms are not larger than docs/style.md allows.

A waiver is a comment `size waiver: <reason>` on the line of the function or in the comment above
it. For a file, it is `file size waiver: <reason>` among its first ten lines.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cpp_functions
from cpp_functions import Function

FUNCTION_LINES, FILE_LINES, PARAMETERS, NESTING = 70, 800, 6, 3
ROOM_LINES, CMAKE_LINES, DEV_LINES = 3500, 39, 250
TOP_FOLDERS = ("include", "src", "apps", "python", "bench", "tests", "tools", "examples")
WAIVER = re.compile(r"(?<!file )size waiver: *\S+ +\S+")
FILE_WAIVER = re.compile(r"file size waiver: *\S+ +\S+")
CONTROL_STATEMENTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


@dataclass(frozen=True)
class Violation:
    where: str
    what: str
    value: int
    limit: int


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            nesting = max((depth_of(child, 0) for child in node.body), default=0)
            yield Function(
                node.name, node.lineno, last, count_python_parameters(node.args), nesting
            )


def count_python_parameters(arguments: ast.arguments) -> int:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    implicit = 1 if names[:1] in (["self"], ["cls"]) else 0
    star_arguments = [a for a in (arguments.vararg, arguments.kwarg) if a]
    return len(names) - implicit + len(arguments.kwonlyargs) + len(star_arguments)


def depth_of(node: ast.AST, depth: int) -> int:
    """Return the deepest nesting of control statements. An elif is as deep as its if."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return depth
    inner = depth + isinstance(node, CONTROL_STATEMENTS)
    chained = node.orelse if isinstance(node, ast.If) and has_elif(node) else []
    return max(
        (
            depth_of(child, depth if child in chained else inner)
            for child in ast.iter_child_nodes(node)
        ),
        default=inner,
    )


def has_elif(node: ast.If) -> bool:
    """Return whether an `elif` follows, not an `else: if`. An `elif` has the column of its `if`."""
    branch = node.orelse
    return (
        len(branch) == 1
        and isinstance(branch[0], ast.If)
        and branch[0].col_offset == node.col_offset
    )


def is_waived(lines: list[str], function: Function) -> bool:
    number = function.line - 1
    if WAIVER.search(lines[number]):
        return True
    while number > 0 and lines[number - 1].lstrip().startswith(("//", "#", "@")):
        number -= 1
        if WAIVER.search(lines[number]):
            return True
    return False


def check_function(where: str, function: Function) -> Iterator[Violation]:
    place = f"{where}:{function.line} {function.name}"
    for what, value, limit in (
        ("lines of function", function.lines, FUNCTION_LINES),
        ("parameters", function.parameters, PARAMETERS),
        ("nesting", function.nesting, NESTING),
    ):
        if value > limit:
            yield Violation(place, what, value, limit)


def check_file(where: str, text: str) -> Iterator[Violation]:
    lines = text.splitlines()
    file_limit = {"dev": DEV_LINES}.get(where, FILE_LINES)
    if len(lines) > file_limit and not FILE_WAIVER.search("\n".join(lines[:10])):
        yield Violation(where, "lines of file", len(lines), file_limit)
    is_cpp = where.endswith((".h", ".cc"))
    for function in cpp_functions.functions(text) if is_cpp else python_functions(text):
        if not is_waived(lines, function):
            yield from check_function(where, function)


def sources(root: Path) -> Iterator[str]:
    yield "dev"
    for top in TOP_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".py") and path.is_file():
                yield path.relative_to(root).as_posix()


def room_of(where: str) -> str | None:
    """Return the room to which the lines of a file belong; None for tests. A Python folder is a
    room, and so is a folder of benchmarks."""
    parts = where.split("/")
    if parts[0] == "bench":
        return "/".join(parts[:-1])
    if parts[0] not in ("src", "python", "include", "apps") or "_test." in where:
        return None
    if parts[:2] == ["python", "farandole"]:
        return "/".join(parts[:-1])
    return None if parts[1] == "tests" else "/".join(parts[:2])


def check_rooms(root: Path, files: list[str]) -> Iterator[Violation]:
    lines_by_room: dict[str, int] = {}
    for where in files:
        room = room_of(where)
        if room is not None:
            lines = (root / where).read_text().count("\n")
            lines_by_room[room] = lines_by_room.get(room, 0) + lines
    for room, lines in sorted(lines_by_room.items()):
        if lines > ROOM_LINES:
            yield Violation(room, "lines of room", lines, ROOM_LINES)


def check_cmake(root: Path) -> Iterator[Violation]:
    for top in ("", *TOP_FOLDERS):
        found = (root / top).rglob("CMakeLists.txt") if top else [root / "CMakeLists.txt"]
        for path in sorted(found):
            lines = path.read_text().count("\n") if path.exists() else 0
            if lines > CMAKE_LINES:
                where = path.relative_to(root).as_posix()
                yield Violation(where, "lines of file", lines, CMAKE_LINES)


def violations(root: Path, chosen: list[str]) -> list[Violation]:
    all_files = list(sources(root))
    found = [
        v for where in chosen or all_files for v in check_file(where, (root / where).read_text())
    ]
    return [*found, *check_rooms(root, all_files), *check_cmake(root)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    parser.add_argument("files", nargs="*", help="only these files, as paths from the root")
    arguments = parser.parse_args()
    found = violations(Path(__file__).resolve().parent.parent, arguments.files)
    for v in sorted(found, key=lambda v: v.where):
        print(f"{v.value:5} > {v.limit:<5} {v.what:<18} {v.where}")
    if not arguments.quiet or found:
        print(f"size: {len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
