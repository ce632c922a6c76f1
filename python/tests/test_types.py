"""Programs of users pass `mypy --strict` with the installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy")

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]


def errors_of_mypy(*files: Path) -> str:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--scripts-are-modules"),
            # torch's Tensor.backward() has no types, and tqdm has no stubs.
            *("--untyped-calls-exclude=torch", "--disable-error-code=import-untyped"),
            f"--cache-dir={ROOT / '.mypy_cache' / 'users'}",
            *map(str, files),
        ],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if result.returncode == 0 else result.stdout + result.stderr


@pytest.mark.parametrize("folder", ["torch", "horovod"])
def test_examples_pass(folder: str) -> None:
    files = sorted((ROOT / "examples" / folder).glob("*.py"))
    assert files
    assert errors_of_mypy(*files) == ""


def test_results_have_their_types() -> None:
    assert errors_of_mypy(TESTS / "typed_program.py") == ""


def test_results_have_their_types_with_horovods_import(tmp_path: Path) -> None:
    text = (TESTS / "typed_program.py").read_text()
    program = tmp_path / "horovod_program.py"
    program.write_text(text.replace("import farandole.torch as hvd", "import horovod.torch as hvd"))
    assert "horovod.torch" in program.read_text()
    assert errors_of_mypy(program) == ""
