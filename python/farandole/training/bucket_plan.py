"""Decide which gradients share a bucket, and their offsets. These are pure functions for all
frontends."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

# In bytes. Every gradient begins on its own pair of cache lines.
ALIGNMENT_BYTES = 128


@dataclass
class PlannedBucket:
    dtype: Hashable
    bytes: int = 0
    # (index of the gradient, its offset in bytes)
    places: list[tuple[int, int]] = field(default_factory=list)


def plan_buckets(
    gradients: Iterable[tuple[Hashable, int]], bucket_bytes_max: int | None
) -> list[PlannedBucket]:
    """Fill buckets in the order of `gradients`, each of which is (dtype, bytes).

    A bucket holds gradients of one dtype: at most `bucket_bytes_max` bytes in all, or a single
    larger gradient. If `bucket_bytes_max` is None, there is no limit. If it is 0, each bucket holds
    one gradient. Return the buckets in the order of their last gradients, because they become full
    in this order.
    """
    full_buckets: list[PlannedBucket] = []
    open_buckets: dict[Hashable, PlannedBucket] = {}
    for index, (dtype, size_bytes) in enumerate(gradients):
        padded_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        bucket = open_buckets.get(dtype)
        if (
            bucket_bytes_max is not None
            and bucket
            and (bucket_bytes_max == 0 or bucket.bytes + padded_bytes > bucket_bytes_max)
        ):
            full_buckets.append(open_buckets.pop(dtype))
            bucket = None
        if bucket is None:
            bucket = open_buckets[dtype] = PlannedBucket(dtype)
        bucket.places.append((index, bucket.bytes))
        bucket.bytes += padded_bytes
    full_buckets.extend(open_buckets.values())
    return sorted(full_buckets, key=lambda bucket: bucket.places[-1])


def plan_groups(
    gradients: Sequence[tuple[Hashable, int]], groups: Sequence[int | None]
) -> list[PlannedBucket]:
    """Put gradients with the same number in `groups` together: one bucket, of any size, for each
    dtype. Gradients with the number None come last, each in its own bucket."""

    def sort_key(index: int) -> int:
        number = groups[index]
        return sys.maxsize if number is None else number

    plan: list[PlannedBucket] = []
    for number, same_group in itertools.groupby(sorted(range(len(groups)), key=sort_key), sort_key):
        indices = list(same_group)
        bucket_bytes_max = 0 if number == sys.maxsize else None
        for bucket in plan_buckets([gradients[index] for index in indices], bucket_bytes_max):
            bucket.places = [(indices[place], offset) for place, offset in bucket.places]
            plan.append(bucket)
    return plan
