"""The experiment of docs/elastic.md, with little data. It must check its own runs, and draw its
plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROGRAM = Path(__file__).parents[2] / "bench/frameworks/elastic_experiment.py"
SMALL_EXPERIMENT = ("--images", "256", "--test-images", "200", "--epochs", "2", "--seeds", "1")


@pytest.mark.long
def test_the_accuracy_is_compared_after_checks(tmp_path: Path) -> None:
    results, plot = tmp_path / "results", tmp_path / "plot"
    words = [*SMALL_EXPERIMENT, "--fixed-seeds", "2", "--json", results, "--plot", plot]
    completed = subprocess.run(
        [sys.executable, PROGRAM, *words, "--schedules", "fixed=1", "changing=2,3,2"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # The accuracies of such short trainings may differ by more than noise. Then the last line of
    # the output says this.
    assert completed.returncode == 0 or "not within noise" in completed.stderr, (
        completed.stdout + completed.stderr
    )
    assert "A repeated run ended with the same bits, too." in completed.stdout, completed.stdout
    runs = json.loads(results.read_text())["runs"]
    assert [run["seed"] for run in runs["fixed"]] == [0, 1]
    (changing,) = runs["changing"]
    assert list(changing["curve"]) == ["1", "2", "3", "4"]
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
