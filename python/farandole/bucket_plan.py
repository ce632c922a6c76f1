"""Decide which gradients share a bucket, and where each lies in it. Pure; for every frontend."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

# In bytes: every gradient begins on its own pair of cache lines.
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
    the order of their last gradients, because in this order they become full.
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
