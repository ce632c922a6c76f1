"""Test how the output of `llvm-cov export` is read, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from region_counts import FileCounts, counts_of_document, is_counted, programs_of


def document(*files: str) -> dict[str, Any]:
    """Imitate llvm-cov's output. A segment is a list: line, column, count, and three flags."""
    segments = [
        [3, 1, 5, True, True, False],
        [4, 7, 0, True, True, False],
        [4, 20, 5, True, False, False],
        [6, 2, 7, False, False, False],
    ]
    lines = {"count": 4, "covered": 3}
    entries = [{"filename": f, "segments": segments, "summary": {"lines": lines}} for f in files]
    return {"data": [{"files": entries}]}


def test_a_count_holds_up_to_the_next_place(tmp_path: Path) -> None:
    build = tmp_path / "build/coverage"
    found = counts_of_document(document("../../src/base/a.h"), tmp_path, build)
    starts = [(3, 1, 5), (4, 7, 0), (4, 20, 5), (6, 2, 0)]
    assert found == {"src/base/a.h": FileCounts(lines=4, covered_lines=3, starts=starts)}
    file = found["src/base/a.h"]
    places = [(2, 9), (3, 1), (4, 6), (4, 7), (4, 19), (4, 20), (5, 1), (6, 1), (6, 2), (9, 1)]
    has_run = [file.has_run(line, column) for line, column in places]
    assert has_run == [False, True, True, False, False, True, True, True, False, False]


@pytest.mark.parametrize(
    "file",
    [
        "src/base/a_test.cc",
        "src/engine/job_in_test.h",
        "tests/model/job.cc",
        "apps/farandole/main.cc",
    ],
)
def test_tests_and_the_command_do_not_count(file: str, tmp_path: Path) -> None:
    assert not is_counted(file)
    assert counts_of_document(document(f"{tmp_path}/{file}"), tmp_path, tmp_path) == {}


def test_foreign_files_do_not_count(tmp_path: Path) -> None:
    assert counts_of_document(document("/usr/include/c++/vector"), tmp_path, tmp_path) == {}


def test_only_programs_of_the_build_are_read(tmp_path: Path) -> None:
    names = ("src/base/base_unit_test", "tests/sim/sim", "src/base/liba.a", "src/base/CMakeLists")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o644 if name.endswith("CMakeLists") else 0o755)
    programs = [path.relative_to(tmp_path).as_posix() for path in programs_of(tmp_path)]
    assert programs == ["src/base/base_unit_test", "tests/sim/sim"]
