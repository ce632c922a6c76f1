"""Test mutants.py: reading, planting, and reporting tests that find nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import mutants
from mutants import Mutant, chosen, outcome_of, read_mutants, with_bug

ROOT = Path(__file__).resolve().parent.parent
BUG = Mutant("minus", "sum.txt", "a + b", "a - b", tests="sum_unit_test")


def test_every_listed_bug_fits_its_file() -> None:
    for mutant in read_mutants((ROOT / "tools/mutants.toml").read_text()):
        source = (ROOT / mutant.file).read_text()
        assert with_bug(mutant, source) != source, mutant.name


def test_two_bugs_cannot_have_one_name() -> None:
    entry = '[[mutant]]\nname="x"\nfile="f"\nfind="a"\nreplace="b"\ntests="t"\n'
    with pytest.raises(ValueError, match="two bugs have the name x"):
        read_mutants(entry + entry)


@pytest.mark.parametrize("source", ["a * b", "a + b; a + b"])
def test_a_text_that_does_not_occur_once_is_rejected(source: str) -> None:
    with pytest.raises(ValueError, match=r"sum\.txt contains the text"):
        with_bug(BUG, source)


@pytest.mark.parametrize(("tests_pass", "outcome"), [(True, "SURVIVED"), (False, "found")])
def test_the_source_is_restored_after_every_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests_pass: bool, outcome: str
) -> None:
    source = tmp_path / "sum.txt"
    source.write_text("return a + b")
    seen = []

    def run_tests(mutant: Mutant, timeout: float) -> bool:
        seen.append(source.read_text())
        return tests_pass

    monkeypatch.setattr(mutants, "TREE", tmp_path)
    monkeypatch.setattr(mutants, "tests_pass", run_tests)
    assert outcome_of(BUG, seconds=1) == outcome
    assert seen == ["return a - b"]
    assert source.read_text() == "return a + b"


def test_a_bug_that_does_not_build_does_not_count_as_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(mutant: Mutant, timeout: float) -> bool:
        raise mutants.BuildError("sum_unit_test")

    (tmp_path / "sum.txt").write_text("return a + b")
    monkeypatch.setattr(mutants, "TREE", tmp_path)
    monkeypatch.setattr(mutants, "tests_pass", fail)
    assert outcome_of(BUG, seconds=1) == "does not build"


def test_names_and_quick_choose_bugs() -> None:
    quick = Mutant("quick", "f", "a", "b", tests="t", quick=True)
    assert chosen([BUG, quick], [], quick=False) == [BUG, quick]
    assert chosen([BUG, quick], [], quick=True) == [quick]
    assert chosen([BUG, quick], ["minus"], quick=False) == [BUG]
    with pytest.raises(SystemExit, match="no bug with the name 'times'"):
        chosen([BUG, quick], ["times"], quick=False)
