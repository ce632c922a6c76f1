"""Agree on the layout of buckets: which gradients get a place, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.comparison import allreduce_max
from farandole.group import Group

# The kind of gradient that a rank has for a parameter. If the ranks have different kinds, all ranks
# use the largest one. CHANGED means that the rank's program has changed the gradient; then no rank
# combines the gradient.
NO_GRADIENT, DENSE, SPARSE, CHANGED = range(4)


class AgreedGradient(NamedTuple):
    """The agreement of the ranks on one gradient."""

    kind: int
    is_on_all_ranks: bool  # whether all ranks have the gradient
    place: tuple[int, int]  # a key for sorting; see agree_on_gradients()


def agree_on_gradients(
    kinds: Sequence[int], completed: Sequence[int], name: str, group: Group
) -> list[AgreedGradient]:
    """Return the agreement of the ranks on each gradient, after one allreduce called `name`.

    `kinds` has this rank's kind of each gradient. `completed` has the indices of the gradients that
    are complete on this rank, in the order of their completion. Sorting by the returned places
    gives the order in which gradients became complete on member 0.
    """
    count = len(kinds)
    places = [-1] * count
    if group.rank() == 0:
        places = [count] * count
        for place, index in enumerate(completed):
            places[index] = place
    maxima = allreduce_max([*kinds, *places, *(kind == NO_GRADIENT for kind in kinds)], name, group)
    columns = (maxima[:count], maxima[count : 2 * count], maxima[2 * count :])
    return [
        AgreedGradient(kind, not is_missing_somewhere, (place, -index))
        for index, (kind, place, is_missing_somewhere) in enumerate(zip(*columns, strict=True))
    ]
