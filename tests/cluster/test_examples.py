"""The examples train to their ends, alone and with several workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from job import command, command_elsewhere, run, run_command

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"
EXAMPLE = EXAMPLES / "fashion_mnist.py"
ARGUMENTS = ("--limit", "2000", "--epochs", "1")


def check_end(text: str, workers: int) -> None:
    assert f"parameters of {workers} workers are bitwise equal" in text, text
    accuracy = re.search(r"test accuracy (0\.\d{4})", text)
    assert accuracy is not None and float(accuracy[1]) > 0.3, text  # 0.1 without learning
    assert re.search(rf"[\d,]+ images/s with {workers} workers", text), text


def test_fashion_mnist_alone() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, *ARGUMENTS],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_end(done.stdout, 1)


def test_fashion_mnist_with_four_workers() -> None:
    job = run(4, sys.executable, EXAMPLE, *ARGUMENTS)
    assert job.code == 0, job.text
    check_end(job.text, 4)


@pytest.mark.parametrize("launcher", ["farandole", "torchrun"])
def test_ddp(launcher: str) -> None:
    program = (sys.executable, EXAMPLES / "ddp.py")
    ours = launcher == "farandole"
    words = command(2, *program) if ours else command_elsewhere(launcher, 2, *program)
    assert words is not None
    job = run_command(words)
    assert job.code == 0, job.text
    loss = re.search(r"loss (\d+\.\d) after 60 steps with 2 ranks", job.text)
    assert loss is not None, job.text
    assert float(loss[1]) < 60.0, job.text  # 80 without learning
