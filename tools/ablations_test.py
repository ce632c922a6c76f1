"""Test that every listed switch fits the sources, and that the page has a row for each."""

from __future__ import annotations

import pytest

import ablations
from ablations import Constant, Cost, Heuristic, is_useful, with_switch, with_table, with_variable

HEURISTICS, CONSTANTS = ablations.read_ablations(
    (ablations.ROOT / "tools/ablations.toml").read_text()
)


def test_every_switch_fits_its_file() -> None:
    for heuristic in HEURISTICS:
        source = (ablations.ROOT / heuristic.file).read_text()
        assert with_switch(heuristic, source, source) != source
    for constant in CONSTANTS:
        source = (ablations.ROOT / constant.file).read_text()
        assert with_variable(constant, source)[1] > 0


def test_the_page_has_a_row_for_each() -> None:
    page = ablations.PAGE.read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    for heuristic in HEURISTICS:
        assert rows.count(heuristic.name) == 1
    for constant in CONSTANTS:
        value = with_variable(constant, (ablations.ROOT / constant.file).read_text())[1]
        assert rows.count(f"`{constant.name}` = {value}") == 1


def test_statements_and_expressions_are_switched() -> None:
    statement = Heuristic("s", "f", "learn(x);", "w")
    assert with_switch(statement, "if (y) learn(x);", "if (y) learn(x);") == (
        'if (y) { if (is_without("s")) {  } else { learn(x); } }'
    )
    expression = Heuristic("e", "f", "x == 2", "w", off="true")
    assert with_switch(expression, "return x == 2;", "return x == 2;") == (
        'return (is_without("e") ? (true) : (x == 2));'
    )
    with pytest.raises(ValueError, match="contains the text 2 times"):
        with_switch(expression, "", "x == 2 || x == 2")


def test_constants_become_variables() -> None:
    source = "inline constexpr std::size_t kMax = std::size_t{1} << 4;"
    assert with_variable(Constant("kMax", "f"), source) == (
        'inline const std::size_t kMax = std::size_t(value_of("kMax", std::size_t{1} << 4));',
        16,
    )
    with pytest.raises(ValueError, match="f declares kMin 0 times"):
        with_variable(Constant("kMin", "f"), source)


def test_a_heuristic_is_useful_by_messages_steps_time_or_rules() -> None:
    on = Cost(100, 1, 100, 100, 0)
    assert not is_useful(on, Cost(101, 9, 90, 101, 0))
    assert is_useful(on, Cost(102, 1, 100, 100, 0))
    assert is_useful(on, Cost(100, 1, 102, 100, 0))
    assert is_useful(on, Cost(100, 1, 100, 102, 0))
    assert is_useful(on, Cost(100, 1, 100, 100, 1))


def test_a_row_shows_what_changes_without_the_heuristic() -> None:
    on = Cost(100, 1, 100, 100, 0)
    assert ablations.row_text("r", "w", on, Cost(150, 1, 100, 90, 0)) == (
        "| r | w | 100 → 150 | 1 | 100 | 100 → 90 |"
    )
    assert ablations.row_text("r", "w", on, Cost(150, 1, 100, 90, 1)) == (
        "| r | w | breaks a rule |  |  |  |"
    )


def test_only_the_named_table_is_replaced() -> None:
    page = "a\n<!-- t: tools/ablations.py -->\n\nold\n\n<!-- end of t -->\nb\n"
    assert with_table(page, "t", "new\n") == page.replace("old", "new")
