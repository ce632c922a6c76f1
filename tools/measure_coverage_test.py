"""Test the table of rooms."""

from __future__ import annotations

from measure_coverage import table
from region_counts import FileCounts


def test_the_table_has_each_room_and_src_as_a_whole() -> None:
    counts = {
        "src/base/a.cc": FileCounts(2, 1),
        "src/engine/b.cc": FileCounts(2, 2),
        "apps/farandole/main.cc": FileCounts(1, 0),
    }
    rows, percentage = table(counts)
    assert percentage == 75
    assert [row.split() for row in rows] == [
        ["room", "lines", "covered", "%"],
        ["apps/farandole", "1", "0", "0.0"],
        ["src", "4", "3", "75.0"],
        ["src/base", "2", "1", "50.0"],
        ["src/engine", "2", "2", "100.0"],
    ]


def test_no_counts_mean_no_coverage() -> None:
    assert table({})[1] == 0
