from __future__ import annotations

from farandole.training.bucket_plan import ALIGNMENT_BYTES, plan_buckets, plan_groups


def places(gradients: list[tuple[str, int]], limit: int) -> list[list[tuple[int, int]]]:
    return [bucket.places for bucket in plan_buckets(gradients, limit)]


def test_no_gradients_need_no_bucket() -> None:
    assert places([], 1000) == []


def test_gradients_are_aligned_and_fill_a_bucket_up_to_the_limit() -> None:
    gradients = [("f", 100), ("f", 128), ("f", 129), ("f", 1)]
    assert places(gradients, 4 * ALIGNMENT_BYTES) == [[(0, 0), (1, 128), (2, 256)], [(3, 0)]]


def test_a_large_gradient_is_alone() -> None:
    assert places([("f", 10), ("f", 9999), ("f", 10)], 256) == [[(0, 0)], [(1, 0)], [(2, 0)]]


def test_with_the_limit_0_each_gradient_is_alone() -> None:
    assert places([("f", 10), ("f", 20)], 0) == [[(0, 0)], [(1, 0)]]
    assert places([("f", 0), ("f", 0)], 0) == [[(0, 0)], [(1, 0)]]


def test_one_dtype_per_bucket_listed_by_last_gradient() -> None:
    gradients = [("f", 8), ("d", 8), ("f", 8), ("d", 8), ("d", 8)]
    plan = plan_buckets(gradients, 1 << 20)
    assert [(bucket.dtype, [index for index, _ in bucket.places]) for bucket in plan] == [
        ("f", [0, 2]),
        ("d", [1, 3, 4]),
    ]
    assert [bucket.bytes for bucket in plan] == [256, 384]


def test_places_of_gradients_do_not_overlap() -> None:
    gradients = [("fd"[i % 2], 37 * i) for i in range(50)]
    plan = plan_buckets(gradients, 3000)
    assert sorted(index for bucket in plan for index, _ in bucket.places) == list(range(50))
    for bucket in plan:
        end = 0
        for index, offset in bucket.places:
            assert offset >= end and offset % ALIGNMENT_BYTES == 0
            end = offset + gradients[index][1]
        assert end <= bucket.bytes


def test_a_group_has_one_bucket_for_each_dtype_and_the_others_are_alone() -> None:
    gradients = [("f", 9999), ("f", 8), ("d", 8), ("f", 8), ("f", 8)]
    plan = plan_groups(gradients, [1, None, 1, 0, 1])
    assert [bucket.places for bucket in plan] == [
        [(3, 0)],
        [(2, 0)],
        [(0, 0), (4, 10112)],
        [(1, 0)],
    ]
