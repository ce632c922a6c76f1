"""The texts about parameters that differ between ranks, as users read them."""

from __future__ import annotations

from farandole.training.parameter_check import ParameterDigest, find_difference


def parameters(**digests: str) -> dict[str, ParameterDigest]:
    return {name: ParameterDigest("float32 [4]", digest) for name, digest in digests.items()}


def test_one_of_two_ranks_differs() -> None:
    rank_0, rank_1 = parameters(a="11", b="22"), parameters(a="11", b="33")
    difference = find_difference({0: rank_0, 1: rank_1})
    assert (difference.name, difference.only_values_differ, difference.is_unreadable) == (
        "b",
        True,
        False,
    )
    assert difference.details == (
        "1 of 2 differs, `b` (float32 [4])\n  rank 0   digest 22\n  rank 1   digest 33"
    )


def test_the_one_rank_that_differs_is_named_and_comes_last() -> None:
    equal_parameters, different_parameters = (
        parameters(a="11", b="22", c="33"),
        parameters(a="11", b="23", c="34"),
    )
    difference = find_difference(
        {rank: different_parameters if rank == 1 else equal_parameters for rank in range(64)}
    )
    assert difference.details == (
        "2 of 3 differ, the first is `b` (float32 [4]); rank 1 differs from the others\n"
        "  ranks 0, 2-63   digest 22\n"
        "  rank 1          digest 23"
    )


def test_a_table_of_many_variants_is_cut() -> None:
    difference = find_difference({rank: parameters(a=f"{rank:016x}") for rank in range(64)})
    lines = difference.details.splitlines()
    assert lines[0] == "1 of 1 differs, `a` (float32 [4])"
    assert lines[1] == "  rank 0   digest 0000000000000000"
    assert lines[9:] == ["  and 56 more variants: ranks 8-63"]
    assert len(lines) == 10


def test_different_shapes_and_dtypes_are_listed() -> None:
    rank_0, rank_2 = parameters(a="11", b="22"), parameters(a="11", b="22")
    rank_2["b"] = ParameterDigest("float64 [4]", "22")
    difference = find_difference({0: rank_0, 1: rank_0, 2: rank_2, 3: rank_0})
    assert (difference.name, difference.only_values_differ) == ("b", False)
    assert difference.details == (
        "1 of 2 differs, `b`; rank 2 differs from the others\n"
        "  ranks 0, 1, 3   float32 [4]\n"
        "  rank 2          float64 [4]"
    )


def test_a_missing_parameter_is_named() -> None:
    difference = find_difference(
        {0: parameters(a="11", b="22"), 1: parameters(a="11"), 2: parameters(a="0")}
    )
    assert (difference.name, difference.only_values_differ) == ("b", False)
    assert difference.details == (
        "ranks 1, 2 do not have `b`\n"
        "  ranks 1, 2   1 parameter\n"
        "  rank 0       2 parameters, `b` is float32 [4]"
    )


def test_different_names_are_listed() -> None:
    difference = find_difference({0: parameters(a="11", b="22"), 1: parameters(a="11", c="22")})
    assert difference.details == (
        "rank 1 does not have `b`\n"
        "  rank 0   2 parameters, `b` is float32 [4]\n"
        "  rank 1   2 parameters, among them `c`, which others do not have"
    )


def test_a_rank_that_cannot_read_its_parameters_is_named() -> None:
    difference = find_difference({0: parameters(a="11"), 1: "`a` is on the device meta"})
    assert (difference.is_unreadable, difference.problem) == (True, "cannot be compared")
    assert difference.details == "rank 1 cannot read them\n  rank 1   `a` is on the device meta"
