"""The examples, and the program of the migration guide, run to their end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import horovod_launched
import pytest
from horovod_launched import horovodrun
from job import command, command_of_launcher, run, run_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "torch"
EXAMPLE = EXAMPLES / "fashion_mnist.py"
ARGUMENTS = ("--limit", "2000", "--epochs", "1")


def check_end(text: str, workers: int) -> None:
    assert f"parameters of {workers} workers are bitwise equal" in text, text
    accuracy = re.search(r"test accuracy (0\.\d{4})", text)
    assert accuracy is not None and float(accuracy[1]) > 0.3, text  # guessing gives 0.1
    assert re.search(rf"[\d,]+ images/s with {workers} workers", text), text


def test_fashion_mnist_alone() -> None:
    completed = subprocess.run(
        [sys.executable, EXAMPLE, *ARGUMENTS],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    check_end(completed.stdout, 1)


@pytest.mark.long
def test_fashion_mnist_with_four_workers() -> None:
    job = run(4, sys.executable, EXAMPLE, *ARGUMENTS)
    assert job.code == 0, job.text
    check_end(job.text, 4)


@pytest.mark.parametrize(
    ("folder", "backend"),
    [
        ("jax", ""),
        pytest.param("tensorflow", "", marks=pytest.mark.long),
        ("keras", "tensorflow"),
        pytest.param("keras", "torch", marks=pytest.mark.long),
        pytest.param("keras", "jax", marks=pytest.mark.long),
    ],
)
def test_fashion_mnist_with_other_frameworks(folder: str, backend: str) -> None:
    environment = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": backend or "tensorflow"}
    program = EXAMPLES.parent / folder / "fashion_mnist.py"
    job = run(2, sys.executable, program, *ARGUMENTS, environment=environment)
    assert job.code == 0, job.text
    check_end(job.text, 2)


def test_imagenet_resumes_where_it_was_ended(tmp_path: Path) -> None:
    """A training that was ended and resumed gives the same bits as one without a break."""

    def train(folder: str, epochs: int) -> str:
        flags = ("--epochs", "3", "--checkpoints", tmp_path / folder)
        for epoch in range(epochs + 1, 4):
            (tmp_path / folder / f"epoch-{epoch}.pt").unlink(missing_ok=True)
        job = run(2, sys.executable, EXAMPLES / "imagenet.py", "--images", "128", *flags)
        assert job.code == 0, job.text
        assert f"{epochs} epochs are done" in job.text, job.text
        match = re.search(r"bitwise equal \((\w+)\)", job.text)
        assert match is not None, job.text
        return match[1]

    uninterrupted = train("a", 0)
    assert train("a", 1) == uninterrupted
    assert train("a", 3) == uninterrupted


@pytest.mark.long
@pytest.mark.parametrize("flag", ["--fp16-allreduce", "--use-adasum"])
def test_imagenet_with_other_reductions(flag: str, tmp_path: Path) -> None:
    words = ("--images", "64", "--epochs", "1", "--checkpoints", tmp_path, flag)
    job = run(2, sys.executable, EXAMPLES / "imagenet.py", *words)
    assert job.code == 0, job.text
    assert "epoch 1: loss" in job.text and "bitwise equal" in job.text, job.text


@pytest.mark.long  # test_an_elastic_training_survives_the_loss_of_a_worker() is the short version
def test_an_elastic_training_continues_from_its_last_commit() -> None:
    words = ("--limit", "1000", "--epochs", "2", "--batches-per-commit", "3", "--fail-at", "11")
    job = run(2, sys.executable, EXAMPLES / "elastic_fashion_mnist.py", *words)
    assert job.code == 0, job.text
    # An epoch has the batches 0 to 7, each of 128 images, so batch 9 is the second batch of the
    # second epoch.
    start_lines = re.findall(r"batch \d+: \d+ images of epoch \d are done", job.text)
    assert start_lines == [
        "batch 0: 0 images of epoch 1 are done",
        "batch 9: 128 images of epoch 2 are done",
    ]
    assert re.search(r"test accuracy 0\.\d+ after 16 batches", job.text), job.text
    assert "bitwise equal" in job.text, job.text


def test_an_elastic_training_survives_the_loss_of_a_worker() -> None:
    program = (sys.executable, EXAMPLES / "elastic_fashion_mnist.py", "--limit", "2000")
    options = ("--epochs", "2", "--batches-per-commit", "3", "--kill-at", "7")
    words = command(3, *program, *options)
    position = words.index("run") + 1
    words[position:position] = ["--min-workers", "2", "--cooldown-range", "60,60"]
    job = run_command(words)
    assert job.code == 0, job.text
    assert "batch 0: 0 images of epoch 1 are done, 3 workers go on" in job.text
    # Rank 0 has committed at batch 6, and repeats batch 7 with the worker that is left.
    assert "batch 6: 1152 images of epoch 1 are done, 2 workers go on" in job.text, job.text
    assert "parameters of 2 workers are bitwise equal" in job.text, job.text


@pytest.mark.long
def test_an_elastic_training_with_jax_survives_the_loss_of_a_worker() -> None:
    program = (sys.executable, EXAMPLES.parent / "jax" / "elastic_fashion_mnist.py")
    words = command(3, *program, "--limit", "2000", "--kill-at", "7")
    place = words.index("run") + 1
    words[place:place] = ["--min-workers", "2", "--cooldown-range", "60,60"]
    job = run_command(words, {"JAX_PLATFORMS": "cpu"})
    assert job.code == 0, job.text
    assert "step 7: 2 workers go on" in job.text, job.text
    assert "parameters of 2 workers are bitwise equal" in job.text, job.text
    # In 7 steps, three workers have used 1344 images. With two workers, the first epoch ends after
    # 6 more steps, and the second epoch has 16 steps.
    assert re.search(r"test accuracy 0\.\d+ after 29 steps", job.text), job.text


@pytest.mark.parametrize("launcher", ["farandole", "torchrun"])
def test_ddp_learns_with_each_launcher(launcher: str) -> None:
    program = (sys.executable, EXAMPLES / "ddp.py")
    is_farandole = launcher == "farandole"
    words = command(2, *program) if is_farandole else command_of_launcher(launcher, 2, *program)
    assert words is not None
    job = run_command(words)
    assert job.code == 0, job.text
    loss = re.search(r"loss (\d+\.\d) after 60 steps with 2 ranks", job.text)
    assert loss is not None, job.text
    assert float(loss[1]) < 60.0, job.text  # a model that has learned nothing has 80


@pytest.mark.parametrize(
    ("script", "patterns"),
    [
        ("synthetic_benchmark.py", [r"Total img/sec on 2 worker\(s\): [\d.]+", "are equal"]),
        ("fashion_mnist.py", [r"learning rate 0\.0400", r"Test set: .* accuracy 0\.\d+"]),
        pytest.param(
            "process_sets.py",
            [r"ranks \[0\] have trained", r"ranks \[1\] have trained", "together"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "sparse_embeddings.py",
            [r"a step touches \d+ of 20000 rows", "gets the same parameters"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "adasum.py",
            ["orthogonal ones are added", r"accuracy \d\.\d+ after"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_scripts_of_horovods_users(script: str, patterns: list[str]) -> None:
    completed = horovodrun("-np", "2", "python", ROOT / "examples" / "horovod" / script)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    for pattern in patterns:
        assert re.search(rf"^\[\d\]<stdout>:.*{pattern}", completed.stdout, re.MULTILINE), (
            completed.stdout
        )


def test_snippets_of_the_migration_guide(tmp_path: Path) -> None:
    """Save the program of the page as train.py, and run the commands of the page."""
    blocks = re.findall(
        r"^```(\w+)\n(.*?)^```", (ROOT / "docs/migration.md").read_text(), re.MULTILINE | re.DOTALL
    )
    kinds = dict(blocks)
    assert [kind for kind, _ in blocks] == ["text", "python", "sh"]
    (tmp_path / "train.py").write_text(kinds["python"])
    completed = horovod_launched.run(["sh", "-ec", kinds["sh"]], tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    first_line, second_line = completed.stdout.splitlines()
    assert re.fullmatch(r"\[0\]<stdout>:loss \d+\.\d+ on 2 workers", first_line)
    assert second_line == first_line.replace("<stdout>:", " ")
