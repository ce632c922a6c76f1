"""Compute ratios with confidence intervals from the times of rounds.

The functions have no side effects.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
Times = Mapping[int, Sequence[float]]  # for each size, the times in all rounds


@dataclass(frozen=True)
class Interval:
    """A median with the bounds of its bootstrap 95 % confidence interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def bootstrap(rounds: int, statistic: Callable[[Sequence[int]], float]) -> Interval:
    """Return the statistic of all rounds, with its 95 % confidence interval from resampled rounds.

    The same rounds always give the same interval.
    """
    source = random.Random(20)
    all_rounds = range(rounds)
    samples = sorted(
        statistic([source.choice(all_rounds) for _ in all_rounds]) for _ in range(RESAMPLES)
    )
    low, high = samples[RESAMPLES // 40], samples[-1 - RESAMPLES // 40]
    return Interval(statistic(all_rounds), low, high)


def speedup(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the factor by which we are faster at one size: the median of the rounds' ratios."""
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return bootstrap(len(ratios), lambda rounds: statistics.median(ratios[r] for r in rounds))


def mean_speedup(ours: Times, theirs: Times) -> Interval:
    """Return the geometric mean, over all sizes, of the median speed-up in the rounds."""
    ratios = {
        size: [their / our for our, their in zip(ours[size], theirs[size], strict=True)]
        for size in theirs
    }
    rounds = len(next(iter(ratios.values())))

    def statistic(chosen: Sequence[int]) -> float:
        medians = [statistics.median(values[r] for r in chosen) for values in ratios.values()]
        return geometric_mean(medians)

    return bootstrap(rounds, statistic)


def is_quiet(value: float, middle: float) -> bool:
    """Return whether a round counts: whether its ping-pong took between half and twice the usual
    time."""
    return middle / 2 <= value <= middle * 2
