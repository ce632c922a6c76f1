"""Notebooks show the workers of a job as an HTML table with a row for each worker."""

from __future__ import annotations

import copy
import pickle
import time
import xml.etree.ElementTree as ET

import farandole
from farandole.jobs.html_table import html_table
from farandole.jobs.launched_worker import Worker


def rows_of(table: str) -> list[list[str]]:
    """Parse the table, which is also XML, and return the texts of its cells."""
    root = ET.fromstring(table)
    return [[cell.text or "" for cell in row] for row in root.iter("tr")]


def test_a_table_shows_the_state_of_each_worker() -> None:
    workers = [Worker(rank, "host", runs_function=True) for rank in range(3)]
    workers[1].record_start(17)
    workers[2].record_start(18)
    workers[2].record_end("signal", 9, stopping=False)
    heading, *rows = rows_of(html_table("3 workers on <host>", workers))
    assert heading == ["rank", "host", "pid", "state", "exit code", "result or error"]
    assert rows[0] == ["0", "host", "", "starting", "", ""]
    assert rows[1] == ["1", "host", "17", "running", "", ""]
    assert rows[2][:5] == ["2", "host", "18", "failed", "137"]
    assert "was killed by signal 9 (SIGKILL)" in rows[2][5]


def test_a_notebook_shows_a_job_as_a_table() -> None:
    def work() -> str:
        rank = farandole.rank() if farandole.is_initialized() else None
        return f"<b>&\n{rank}" + "x" * 300

    workers = farandole.launch_workers(1, work)
    outcomes = farandole.await_workers(workers)
    assert outcomes == [work()]
    assert type(pickle.loads(pickle.dumps(outcomes))) is list
    assert copy.deepcopy(outcomes) == outcomes
    for shown in (workers, outcomes):
        _, row = rows_of(shown._repr_html_())
        assert row[3:5] == ["done", "0"]
        assert row[5].startswith("'<b>&\\nNone") and len(row[5]) <= 120


def test_a_notebook_shows_an_error_in_one_line() -> None:
    def fail() -> None:
        raise ValueError("a < b\nsecond line")

    outcomes = farandole.await_workers(farandole.launch_workers(1, fail))
    _, row = rows_of(outcomes._repr_html_())
    assert row[3] == "failed" and "raised ValueError: a < b" in row[5]
    assert "second line" not in row[5]


def test_a_result_without_a_repr_does_not_spoil_the_table() -> None:
    def work() -> int:
        return 10**5000

    workers = farandole.launch_workers(1, work)
    farandole.await_workers(workers)
    _, row = rows_of(workers._repr_html_())
    assert row[5] == "a int, whose repr() raised a ValueError"


def test_the_table_of_outcomes_shows_what_is_in_the_list() -> None:
    def sleep() -> None:
        time.sleep(3600)

    workers = farandole.launch_workers(1, sleep)
    outcomes = farandole.await_workers(workers, timeout=0.5)
    farandole.stop_workers(workers)
    _, row = rows_of(outcomes._repr_html_())
    assert row[3] == "running" and isinstance(outcomes[0], TimeoutError)
