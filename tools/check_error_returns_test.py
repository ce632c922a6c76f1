"""Test the check of error returns on sources with one error return."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_error_returns import Excuse, all_error_returns, error_returns, parse_excuses, violations
from region_counts import FileCounts

PATH = "src/engine/a.cc"
LONG_SOURCE = """\
Status f() {
  return Status::stop(
      "cannot open (" + why() + ") a \\"thing)\\"");
}
"""
SHORT_SOURCE = '  if (wrong()) return Status::fix_call("wrong");\n'


def counts(*starts: tuple[int, int, int]) -> FileCounts:
    """Return counts that begin to hold at these places: line, column, count."""
    return FileCounts(starts=list(starts))


REACHED, NOT_REACHED = counts((1, 1, 5), (1, 18, 2)), counts((1, 1, 5), (1, 18, 0))


def reached(source: str, file: FileCounts) -> bool:
    (found,) = error_returns(PATH, source, {PATH: file})
    return found.reached


def test_the_text_is_the_whole_call_in_one_line() -> None:
    (found,) = error_returns(PATH, LONG_SOURCE, {})
    assert found.line == 2
    assert found.text.startswith('return Status::stop( "cannot open (" + why()')
    assert found.text.endswith('thing)\\"")')


def test_the_count_at_the_error_decides() -> None:
    assert reached(LONG_SOURCE, counts((1, 12, 1), (4, 2, 0)))
    assert not reached(LONG_SOURCE, counts((1, 12, 1), (2, 3, 0), (2, 20, 1)))


def test_a_condition_on_the_line_does_not_count_for_the_error() -> None:
    assert not reached(SHORT_SOURCE, NOT_REACHED)
    assert reached(SHORT_SOURCE, REACHED)


def test_a_file_without_counts_is_not_reached() -> None:
    (found,) = error_returns(PATH, SHORT_SOURCE, {})
    assert not found.reached


@pytest.mark.parametrize("name", ["retry", "fix_call", "stop", "rebuild_group"])
def test_every_kind_of_error_is_seen(name: str) -> None:
    assert len(list(error_returns(PATH, f"Status::{name}(text)", {}))) == 1


def test_tests_and_other_rooms_are_ignored(tmp_path: Path) -> None:
    for name in ("src/engine/a.cc", "src/engine/a_test.cc", "src/base/b.cc", "src/transport/c.h"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHORT_SOURCE)
    found = [error.path for error in all_error_returns(tmp_path, {})]
    assert found == ["src/engine/a.cc", "src/transport/c.h"]


def violations_of(file: FileCounts, *excuses: Excuse) -> list[str]:
    return list(violations(list(error_returns(PATH, SHORT_SOURCE, {PATH: file})), list(excuses)))


def test_an_unreached_error_needs_an_excuse() -> None:
    (complaint,) = violations_of(NOT_REACHED)
    assert complaint.startswith(f"{PATH}:1: no test reaches")
    assert violations_of(NOT_REACHED, Excuse(PATH, '"wrong"', "why")) == []


def test_an_excuse_for_a_reached_error_is_wrong() -> None:
    (complaint,) = violations_of(REACHED, Excuse(PATH, '"wrong"', "why"))
    assert "a test reaches this error" in complaint


def test_an_error_that_only_some_runs_reach_is_accepted_either_way() -> None:
    excuse = Excuse(PATH, '"wrong"', "sometimes: two threads have to meet")
    assert violations_of(REACHED, excuse) == []
    assert violations_of(NOT_REACHED, excuse) == []


def test_an_excuse_for_a_missing_error_is_wrong() -> None:
    (complaint,) = violations_of(REACHED, Excuse(PATH, '"other"', "why"))
    assert "0 errors hold this text" in complaint


def test_an_excuse_for_two_errors_is_wrong() -> None:
    found = list(error_returns(PATH, SHORT_SOURCE + SHORT_SOURCE, {}))
    complaint, *_ = violations(found, [Excuse(PATH, '"wrong"', "why")])
    assert "2 errors hold this text" in complaint


def test_excuses_are_read() -> None:
    text = "# about this file\n\nsrc/engine/a.cc | a part | a reason | with a bar\n"
    with pytest.raises(SystemExit, match="not `path"):
        list(parse_excuses(text))
    assert list(parse_excuses("a.cc | a part | a reason\n")) == [
        Excuse("a.cc", "a part", "a reason")
    ]
