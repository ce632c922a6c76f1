"""The TensorFlow frontend in jobs of one to four workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from job import everyday_and_long, last_error_of, run, run_checks, run_programs_of_page

PAGE = Path(__file__).parents[2] / "docs/tensorflow.md"


@pytest.mark.parametrize("size", everyday_and_long([2], [1, 4]))
def test_conformance_and_training(size: int) -> None:
    suites = ("tensorflow_frontend:TensorFlowConformance",)
    run_checks(size, *suites, "tensorflow_training:TensorFlowTrainingChecks")


@pytest.mark.parametrize(
    ("size", "one_thread"),
    [
        (2, "1"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, ""), (3, ""), (4, "1"))),
    ],
)
def test_functions_and_graphs(size: int, one_thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These checks need a job of their own, because they start TensorFlow with other options."""
    monkeypatch.setenv("ONE_THREAD", one_thread)
    run_checks(size, "tensorflow_compiled:TensorFlowCompiledChecks")


def test_the_programs_of_the_page(tmp_path: Path) -> None:
    run_programs_of_page(PAGE, tmp_path)


LEAVING_PROGRAM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has 10 s instead of 5 s to show its own error
import tensorflow as tf
import farandole.tensorflow as hvd

hvd.init()
step = tf.function(hvd.allreduce)
step(tf.ones(4))
if hvd.rank() == 1:
    raise ValueError("no label for image 7")
step(tf.ones(4))
"""


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    """Rank 1 fails first. Then rank 0 ends with an error of TensorFlow's own class, before or in
    its call. The launcher must name rank 1."""
    program = tmp_path / "leaving.py"
    program.write_text(LEAVING_PROGRAM)
    job = run(2, sys.executable, program)
    assert job.code == 1
    assert "raised ValueError: no label for image 7" in job.text, job.text
    assert "AbortedError: " in job.text and "GroupLostError: " in job.text, job.text
    assert "the others: rank 0: exited with code 1" in job.text, job.text


def test_a_missing_tensorflow_is_reported() -> None:
    program = "import sys; sys.modules['tensorflow'] = None; import farandole.tensorflow"
    assert last_error_of(program) == (
        "ImportError: farandole.tensorflow needs TensorFlow, which is not installed here: run `pip "
        "install tensorflow` or `pip install tensorflow-cpu`"
    )


def test_a_tensorflow_that_is_too_old_is_rejected() -> None:
    program = "import tensorflow; tensorflow.__version__ = '2.15.1'; import farandole.tensorflow"
    assert last_error_of(program) == (
        "ImportError: farandole.tensorflow needs TensorFlow 2.16 or newer; this is TensorFlow "
        "2.15.1: run `pip install --upgrade tensorflow`"
    )


def test_a_tensorflow_without_needed_functions_is_rejected() -> None:
    program = (
        "import tensorflow; tensorflow.load_op_library = lambda path: object(); "
        "import farandole.tensorflow"
    )
    assert "cannot add its operations to TensorFlow 2." in last_error_of(program)
