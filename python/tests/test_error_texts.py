"""The error texts of the package, each compared in full."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from job import run_checks

NO_LAUNCHER = (
    "farandole.errors.CallError: a job of size 2 needs a launcher: start it with `farandole run -n "
    "2 …` (there is no FARANDOLE_RENDEZVOUS_DESCRIPTOR here)"
)


def test_all_error_texts_are_as_documented() -> None:
    run_checks(2, "error_texts:ErrorTexts")


@pytest.mark.parametrize("prefix", ["FARANDOLE", "HOROVOD"])
def test_a_size_without_a_launcher_is_rejected(prefix: str) -> None:
    program = "import farandole; farandole.init()"
    result = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, f"{prefix}_SIZE": "2", f"{prefix}_RANK": "0"},
    )
    assert result.stderr.splitlines()[-1] == NO_LAUNCHER


def test_a_torch_that_is_too_old_is_rejected() -> None:
    program = (
        "import torch; torch.__version__ = torch.torch_version.TorchVersion('2.3.1+cpu'); "
        "import farandole.torch"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert result.stderr.splitlines()[-1] == (
        "ImportError: farandole.torch needs torch 2.4 or newer; this is torch 2.3.1+cpu: run `pip "
        "install --upgrade torch`"
    )
