"""Kills random processes of jobs at random moments, for each way of starting a job. random_kills.py
describes the checks."""

from __future__ import annotations

import os
import time

import pytest
from random_kills import WAYS, make_start_method, reason_if_impossible, start_and_kill_jobs

KILLS = 2
MANY_KILLS = 20


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.long)])
def test_kills_at_random_moments(way: str, count: int) -> None:
    if reason := reason_if_impossible(way):
        pytest.skip(reason)
    seed = int(os.environ.get("FARANDOLE_TEST_SEED", time.time_ns() % 1_000_000))
    with make_start_method(way) as start_method:
        kill_counts, failures = start_and_kill_jobs(start_method, count, seed)
    assert not failures, "\n".join(failures)
    assert kill_counts.total() == count
