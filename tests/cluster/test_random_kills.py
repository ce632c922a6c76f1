"""Kills at random moments, in each way of starting a job. random_kills.py says what is checked."""

from __future__ import annotations

import os
import time

import pytest
from random_kills import WAYS, killed_many, made_environment, why_impossible

KILLS = 2
MANY_KILLS = 20


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.long)])
def test_kills_at_random_moments(way: str, count: int) -> None:
    if reason := why_impossible(way):
        pytest.skip(reason)
    seed = int(os.environ.get("FARANDOLE_TEST_SEED", time.time_ns() % 1_000_000))
    with made_environment(way) as environment:
        kinds, failures = killed_many(environment, count, seed)
    assert not failures, "\n".join(failures)
    assert kinds.total() == count
