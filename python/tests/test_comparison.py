"""The texts that show differences between ranks, as users read them. torch_state.py checks such
texts in a job."""

from __future__ import annotations

from farandole.comparison import error_text_of, rank_list, table
from farandole.errors import CallError


def test_rank_list_joins_runs_and_is_cut() -> None:
    assert rank_list([3]) == "rank 3"
    assert rank_list([0, 1]) == "ranks 0, 1"
    assert rank_list([0, 1, 2, 5, 7, 8, 9]) == "ranks 0-2, 5, 7-9"
    assert (
        rank_list(range(0, 200, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, … (100 ranks)"
    )


def test_a_table_has_a_row_for_each_variant() -> None:
    assert table({0: "one", 1: "two", 2: "one"}) == "  ranks 0, 2   one\n  rank 1       two"


def test_the_error_of_a_call_is_returned_as_text() -> None:
    def reject() -> None:
        raise CallError("not so")

    assert error_text_of(list) == ""
    assert error_text_of(reject) == "not so"
    assert error_text_of(lambda: 1 / 0) == "ZeroDivisionError: division by zero"
