"""Decide which gradients share a bucket, and their offsets. Pure functions for every frontend."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

# In bytes. Every gradient begins on its own pair of cache lines.
ALIGNMENT = 128


@dataclass
class PlannedBucket:
    dtype: Hashable
    bytes: int = 0
    # (index of the gradient, its offset in bytes)
    places: list[tuple[int, int]] = field(default_factory=list)


def plan_buckets(
    gradients: Iterable[tuple[Hashable, int]], limit: int | None
) -> list[PlannedBucket]:
    """Fill buckets in the order of `gradients`, each of which is (dtype, bytes).

    A bucket holds gradients of one dtype, at most `limit` bytes in all (None: any number), or a
    single larger gradient. If `limit` is 0, each bucket holds one gradient. Return the buckets in
    the order of their last gradients, because they become full in this order.
    """
    full: list[PlannedBucket] = []
    filling: dict[Hashable, PlannedBucket] = {}
    for index, (dtype, size) in enumerate(gradients):
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        bucket = filling.get(dtype)
        if limit is not None and bucket and (limit == 0 or bucket.bytes + padded > limit):
            full.append(filling.pop(dtype))
            bucket = None
        if bucket is None:
            bucket = filling[dtype] = PlannedBucket(dtype)
        bucket.places.append((index, bucket.bytes))
        bucket.bytes += padded
    full.extend(filling.values())
    return sorted(full, key=lambda bucket: bucket.places[-1])


def plan_groups(
    gradients: Sequence[tuple[Hashable, int]], groups: Sequence[int | None]
) -> list[PlannedBucket]:
    """Put gradients with the same number in `groups` together: one bucket, of any size, for each
    dtype. Gradients whose number is None come last, each in a bucket of its own."""

    def number_of(index: int) -> int:
        number = groups[index]
        return sys.maxsize if number is None else number

    plan: list[PlannedBucket] = []
    for number, same_group in itertools.groupby(
        sorted(range(len(groups)), key=number_of), number_of
    ):
        indices = list(same_group)
        limit = 0 if number == sys.maxsize else None
        for bucket in plan_buckets([gradients[index] for index in indices], limit):
            bucket.places = [(indices[place], offset) for place, offset in bucket.places]
            plan.append(bucket)
    return plan
