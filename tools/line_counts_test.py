"""Test how counts of several programs are merged, without running gcov."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from line_counts import Line, is_counted, merge


def document(file: str, *lines: tuple[int, int, bool]) -> dict[str, Any]:
    """Imitate gcov's output for one program: line, count, and whether a part of the line never
    ran."""
    entries = [{"line_number": n, "count": c, "unexecuted_block": u} for n, c, u in lines]
    return {"files": [{"file": file, "lines": entries}]}


def test_counts_of_programs_and_instances_add_up(tmp_path: Path) -> None:
    build = tmp_path / "build"
    documents = [
        document(f"{tmp_path}/src/base/a.h", (1, 2, True), (2, 0, True)),
        document("../src/base/a.h", (1, 3, True), (1, 1, False), (2, 0, True)),
    ]
    assert merge(documents, tmp_path, build) == {
        "src/base/a.h": {
            1: Line(count=6, ran_completely=True),
            2: Line(count=0, ran_completely=False),
        }
    }


@pytest.mark.parametrize(
    "file",
    [
        "src/base/a_test.cc",
        "src/engine/job_in_test.h",
        "tests/model/job.cc",
    ],
)
def test_tests_do_not_count(file: str, tmp_path: Path) -> None:
    assert not is_counted(file)
    assert merge([document(f"{tmp_path}/{file}", (1, 1, False))], tmp_path, tmp_path) == {}


def test_foreign_files_do_not_count(tmp_path: Path) -> None:
    assert merge([document("/usr/include/c++/vector", (1, 1, False))], tmp_path, tmp_path) == {}
