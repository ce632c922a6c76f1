"""Which gradients share a bucket, and where each lies in it. Pure; every frontend uses it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

# Every gradient begins on its own pair of cache lines.
ALIGNMENT = 128


@dataclass
class PlannedBucket:
    dtype: Hashable
    bytes: int = 0
    # (which gradient, its offset in bytes)
    places: list[tuple[int, int]] = field(default_factory=list)


def plan_buckets(
    gradients: Iterable[tuple[Hashable, int]], limit: int | None
) -> list[PlannedBucket]:
    """Fills buckets in the order of `gradients`, each given as (dtype, bytes).

    A bucket holds one dtype and at most `limit` bytes (None: any number), or one gradient that is
    larger; with 0 each holds one. Buckets are listed by their last gradient: the order in which
    they become full.
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
