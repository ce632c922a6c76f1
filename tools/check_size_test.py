"""Test the size check on small trees, in each of which one function, file or room is too large."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from check_size import Violation, has_elif, python_functions, violations


def check(root: Path, files: dict[str, str]) -> list[Violation]:
    for name, text in ({"dev": "", "CMakeLists.txt": ""} | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return violations(root, [])


def cpp_function(lines: int) -> str:
    return "void f() {\n" + "  g();\n" * (lines - 2) + "}\n"


def python_function(lines: int) -> str:
    return "def f() -> None:\n" + "    g()\n" * (lines - 1)


def test_accepts_what_is_at_the_limits(tmp_path: Path) -> None:
    files = {
        "src/base/a.cc": cpp_function(70) + "int x;\n" * 730,
        "python/farandole/a.py": python_function(70),
        "src/base/CMakeLists.txt": "\n" * 39,
    }
    assert check(tmp_path, files) == []


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("src/base/a.cc", cpp_function(71), "lines of function"),
        ("python/farandole/a.py", python_function(71), "lines of function"),
        ("src/base/a.h", "int x;\n" * 801, "lines of file"),
        ("src/base/CMakeLists.txt", "\n" * 40, "lines of file"),
        ("dev", "\n" * 251, "lines of file"),
        (
            "include/farandole/a.h",
            "void f(int a, int b, int c, int d, int e, int g, int h);",
            "parameters",
        ),
        ("tools/a.py", "def f(a, b, *, c, d, e, g, h): ...", "parameters"),
    ],
)
def test_each_excess_is_reported(tmp_path: Path, name: str, text: str, what: str) -> None:
    (found,) = check(tmp_path, {name: text})
    assert found.what == what
    assert found.where.startswith(name)


def test_a_room_has_a_limit_for_which_tests_do_not_count(tmp_path: Path) -> None:
    files = {f"src/base/part{number}.cc": "\n" * 700 for number in range(5)}
    files |= {f"src/base/part{number}_test.cc": "\n" * 700 for number in range(5)}
    assert check(tmp_path, files) == []
    (found,) = check(tmp_path, {"src/base/one_more.cc": "\n"})
    assert found == Violation("src/base", "lines of room", 3501, 3500)


def test_a_folder_of_a_package_is_a_room(tmp_path: Path) -> None:
    files = {f"python/farandole/part{number}.py": "\n" * 700 for number in range(5)}
    assert check(tmp_path, files | {"python/farandole/torch/more.py": "\n"}) == []
    files = {f"python/farandole/torch/deeper/part{number}.py": "\n" * 700 for number in range(5)}
    (found,) = check(tmp_path, files | {"python/farandole/torch/deeper/more.py": "\n"})
    assert found == Violation("python/farandole/torch/deeper", "lines of room", 3501, 3500)


def test_a_waiver_needs_a_reason(tmp_path: Path) -> None:
    waived = "// size waiver: one row per call of the old API\n" + cpp_function(71)
    assert check(tmp_path, {"src/base/a.cc": waived}) == []
    same_line = cpp_function(71).replace("{", "{  // size waiver: generated table", 1)
    assert check(tmp_path, {"src/base/a.cc": same_line}) == []
    no_reason = "// size waiver:\n" + cpp_function(71)
    assert len(check(tmp_path, {"src/base/a.cc": no_reason})) == 1


def test_a_file_waiver_does_not_cover_its_functions(tmp_path: Path) -> None:
    text = "// file size waiver: the whole table\n" + cpp_function(71) + "int x;\n" * 800
    (found,) = check(tmp_path, {"src/base/a.cc": text})
    assert found.what == "lines of function"


def nesting(text: str) -> int:
    return next(iter(python_functions(text))).nesting


def test_python_nesting_counts_control_statements() -> None:
    assert nesting("def f():\n  with a:\n    for x in y:\n      if x:\n        g()\n") == 2
    assert nesting("def f():\n  try:\n    while a:\n      pass\n  finally:\n    pass\n") == 2
    assert nesting("def f():\n  def g():\n    if a:\n      pass\n") == 0


def test_an_elif_is_no_deeper_than_its_if() -> None:
    assert nesting("def f():\n  if a:\n    g()\n  elif b:\n    g()\n  elif c:\n    g()\n") == 1
    assert nesting("def f():\n  if a:\n    g()\n  else:\n    if b:\n      g()\n") == 2
    statement = ast.parse("if a:\n  b\nelif c:\n  d\n").body[0]
    assert isinstance(statement, ast.If)
    assert has_elif(statement)


def test_python_parameters_leave_out_self() -> None:
    (function,) = python_functions("class C:\n  def f(self, a, *b, c, **d): ...\n")
    assert function.parameters == 4
