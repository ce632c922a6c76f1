"""The experiment of docs/elastic.md, with little data: it checks its runs, and draws its plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROGRAM = Path(__file__).parents[2] / "bench/frameworks/elastic_experiment.py"
LITTLE = ("--images", "256", "--test-images", "200", "--epochs", "2", "--seeds", "1")


@pytest.mark.long
def test_the_accuracy_is_compared_after_checks(tmp_path: Path) -> None:
    results, plot = tmp_path / "results", tmp_path / "plot"
    words = [*LITTLE, "--fixed-seeds", "2", "--json", results, "--plot", plot]
    done = subprocess.run(
        [sys.executable, PROGRAM, *words, "--schedules", "fixed=1", "changing=2,3,2"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # Trainings that are so short may differ by more than noise; then the last line says so.
    assert done.returncode == 0 or "not within noise" in done.stderr, done.stdout + done.stderr
    assert "A repeated run ended with the same bits, too." in done.stdout, done.stdout
    runs = json.loads(results.read_text())["runs"]
    assert [run["seed"] for run in runs["fixed"]] == [0, 1]
    (changing,) = runs["changing"]
    assert list(changing["curve"]) == ["1", "2", "3", "4"]
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
