"""The JAX frontend in jobs of one to four workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from job import everyday_and_long, run, run_checks, run_programs_of_page

PAGE = Path(__file__).parents[2] / "docs/jax.md"


@pytest.fixture(autouse=True)
def use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 4]))
def test_conformance_and_training(size: int) -> None:
    suites = ("jax_training:JaxTrainingChecks", "jax_elastic:JaxElasticChecks")
    run_checks(size, "jax_frontend:JaxConformance", *suites)


@pytest.mark.parametrize("size", everyday_and_long([2], [3]))
def test_models_of_flax_and_equinox(size: int) -> None:
    run_checks(size, "jax_libraries:JaxLibraryChecks")


@pytest.mark.parametrize(
    ("size", "one_core"),
    [
        (3, "1"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, ""), (2, ""), (4, ""))),
    ],
)
def test_compiled_calls(size: int, one_core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These checks need a job of their own, because each rank starts XLA with other options."""
    monkeypatch.setenv("ONE_CORE", one_core)
    run_checks(size, "jax_compiled:JaxCompiledChecks")


def test_a_failure_at_the_end_of_the_program_is_reported() -> None:
    job = run(2, sys.executable, Path(__file__).with_name("jax_failing_at_exit.py"))
    causes = [line for line in job.text.splitlines() if "survivor: " in line]
    assert len(causes) == 1, job.text
    assert "rank 1" in causes[0] and "has left the job (raised " in causes[0], job.text
    assert "was submitted differently on different ranks" in causes[0], job.text
    assert "[1] Traceback" in job.text and "Exception ignored" not in job.text, job.text


def test_the_programs_of_the_page(tmp_path: Path) -> None:
    run_programs_of_page(PAGE, tmp_path)


def test_a_missing_jax_is_reported() -> None:
    program = "import sys; sys.modules['jax'] = None; import farandole.jax"
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert result.stderr.splitlines()[-1] == (
        "ImportError: farandole.jax needs JAX, which is not installed here: run `pip install jax`"
    )


def test_a_jax_that_is_too_old_is_rejected() -> None:
    program = "import jax; jax.version.__version_info__ = (0, 5, 3); import farandole.jax"
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert "farandole.jax needs JAX 0.6.2 or newer" in result.stderr.splitlines()[-1]
