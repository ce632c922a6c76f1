from __future__ import annotations

import pytest

from ratios import bootstrap, geometric_mean, is_quiet, mean_speedup, speedup


def test_geometric_mean() -> None:
    assert geometric_mean([2, 8]) == pytest.approx(4)


def test_speedup_is_the_median_of_the_ratios_of_the_rounds() -> None:
    """The ratios do not change if both contenders are slow in the same round."""
    interval = speedup([1, 10, 1, 1, 1], [2, 20, 2, 2, 7])
    assert interval.middle == 2
    assert interval.low == 2 <= interval.high <= 7


def test_rounds_that_disagree_make_a_wide_interval() -> None:
    interval = speedup([1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7])
    assert interval.low < 3 and interval.middle == 4 and interval.high > 5


def test_mean_speedup_is_the_geometric_mean_over_the_sizes() -> None:
    interval = mean_speedup({8: [1, 1], 16: [1, 1]}, {8: [2, 2], 16: [8, 8]})
    assert interval.middle == pytest.approx(4) == interval.low == interval.high


def test_the_same_rounds_give_the_same_interval() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    first, second = (bootstrap(5, lambda rounds: sum(values[r] for r in rounds)) for _ in "ab")
    assert first == second


def test_a_ping_pong_is_as_usual_within_a_factor_of_two() -> None:
    assert is_quiet(99, 50) and is_quiet(26, 50)
    assert not is_quiet(101, 50) and not is_quiet(24, 50)
