"""Agree on the layout of buckets: which gradients get a place, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.comparison import largest
from farandole.group import Group

# What a rank has for a parameter; of all ranks the largest counts.
NOTHING, DENSE, SPARSE = range(3)


class Agreed(NamedTuple):
    """What the ranks have for one gradient."""

    kind: int
    everywhere: bool  # all of them have it
    place: tuple[int, int]  # in the order of member 0


def agree(kinds: Sequence[int], arrived: Sequence[int], name: str, group: Group) -> list[Agreed]:
    """Return what the ranks have for each gradient, after one allreduce called `name`.

    `kinds` is what this rank has for each. `arrived` are the indices of those that are complete
    here, in the order of their completion; that of member 0 becomes the order of places.
    """
    count = len(kinds)
    order = [-1] * count
    if group.rank() == 0:
        order = [count] * count
        for place, index in enumerate(arrived):
            order[index] = place
    found = largest([*kinds, *order, *(kind == NOTHING for kind in kinds)], name, group)
    parts = (found[:count], found[count : 2 * count], found[2 * count :])
    return [
        Agreed(kind, not is_lacking, (place, -index))
        for index, (kind, place, is_lacking) in enumerate(zip(*parts, strict=True))
    ]
