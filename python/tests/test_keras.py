"""The Keras frontend on its three backends, in jobs of one to three workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from job import everyday_and_long, last_error_of, run_checks, run_programs_of_page

PAGE = Path(__file__).parents[2] / "docs/keras.md"
BACKENDS = ("tensorflow", "torch", "jax")


@pytest.fixture(autouse=True)
def use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.parametrize("backend", everyday_and_long(["tensorflow"], ["torch", "jax"]))
@pytest.mark.parametrize("size", everyday_and_long([2], [1, 3]))
def test_training(backend: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    run_checks(
        size,
        "keras_training:KerasTrainingChecks",
        "keras_optimizers:KerasOptimizersChecks",
        "keras_elastic:KerasElasticChecks",
    )


@pytest.mark.parametrize("backend", everyday_and_long(["tensorflow"], ["torch", "jax"]))
def test_the_program_of_the_page(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    run_programs_of_page(PAGE, tmp_path)


@pytest.mark.parametrize("backend", everyday_and_long(["tensorflow"], ["torch", "jax"]))
def test_no_other_frontend_is_imported(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    other_frontends = {f"farandole.{name}" for name in BACKENDS} - {f"farandole.{backend}"}
    program = (
        "import sys, keras, farandole.keras as hvd; hvd.init(); "
        "hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)); "
        f"assert not {other_frontends} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_keras_is_reported() -> None:
    program = "import sys; sys.modules['keras'] = None; import farandole.keras"
    assert last_error_of(program) == (
        "ImportError: farandole.keras needs Keras 3, which is not installed here: run `pip install "
        "keras`"
    )


def test_a_keras_that_is_too_old_is_rejected() -> None:
    program = "import keras; keras.__version__ = '2.15.0'; import farandole.keras"
    assert last_error_of(program) == (
        "ImportError: farandole.keras needs Keras 3.5 or newer; this is Keras 2.15.0: run `pip "
        "install --upgrade keras`"
    )
