"""Which Python `farandole run` and `farandole doctor` use, and `python -m farandole`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import command

NAMES = ["python", "python3", f"python3.{sys.version_info.minor}"]


def make_program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def copy_of_command(folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy2(command(), folder / "farandole"))


def run(program: str | Path, *words: str, path: str = "/usr/bin:/bin") -> tuple[int, str, str]:
    completed = subprocess.run(
        [program, *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    # Remove the launcher's message about the variables that it sets in the workers.
    errors = [line for line in completed.stderr.splitlines() if "OMP_NUM_THREADS" not in line]
    return completed.returncode, completed.stdout, "\n".join(errors)


@pytest.mark.parametrize("name", NAMES)
def test_run_starts_the_python_beside_the_command(name: str, tmp_path: Path) -> None:
    farandole = copy_of_command(tmp_path / "environment")
    python_beside = make_program(tmp_path / "environment", name, 'echo "beside: $0 $*"')
    other_python = make_program(tmp_path / "other", name, 'echo "in PATH: $0 $*"')
    words = ("run", "-n", "1", name, "train.py", "--lr=1")
    expected = f"[0] beside: {python_beside} train.py --lr=1\n"
    assert run(farandole, *words, path=f"{python_beside.parent}:{other_python.parent}") == (
        0,
        expected,
        "",
    )
    assert run(farandole, *words, path="/nowhere") == (0, expected, "")
    notice = (
        f"farandole: starting {python_beside}, which is in the folder of this command; "
        f"PATH has {other_python}"
    )
    assert run(farandole, *words, path=f"{other_python.parent}:/bin") == (0, expected, notice)
    # If a program is given as a path, the command uses this path. A name that is not that of a
    # Python, such as `pythonic`, is looked up only in PATH.
    expected = f"[0] in PATH: {other_python} train.py\n"
    assert run(farandole, "run", "-n", "1", str(other_python), "train.py") == (0, expected, "")
    shutil.copy2(python_beside, python_beside.with_name("pythonic"))
    shutil.copy2(other_python, other_python.with_name("pythonic"))
    _, output, _ = run(farandole, "run", "-n", "1", "pythonic", path=str(other_python.parent))
    assert output == f"[0] in PATH: {other_python.with_name('pythonic')} \n"


def test_without_a_python_beside_the_command_that_in_path_starts(tmp_path: Path) -> None:
    farandole = copy_of_command(tmp_path / "environment")
    (tmp_path / "environment" / "python").mkdir()  # a folder, and a file that cannot be executed
    (tmp_path / "environment" / "python3").touch()
    for name in ("python", "python3"):
        other_python = make_program(tmp_path / "other", name, "echo other")
        completed_run = run(farandole, "run", "-n", "1", name, path=str(other_python.parent))
        assert completed_run == (0, "[0] other\n", "")
    code, _, errors = run(farandole, "run", "-n", "1", "python", path="/nowhere")
    assert (code, errors) == (127, "farandole: command not found: `python`")


def test_an_environment_that_is_not_activated_is_used() -> None:
    script = "import sys, farandole; print(sys.executable, sys.prefix)"
    code, output, errors = run(command(), "run", "-n", "1", "python", "-c", script)
    assert code == 0, errors
    assert output == f"[0] {Path(sys.executable).with_name('python')} {sys.prefix}\n"


def test_doctor_examines_the_python_beside_the_command(tmp_path: Path) -> None:
    farandole = copy_of_command(tmp_path / "environment")
    other_python = make_program(tmp_path / "other", "python3", "exit 3")
    python_beside = make_program(tmp_path / "environment", "python3", f'exec {sys.executable} "$@"')
    version = ".".join(map(str, sys.version_info[:3]))
    for path, notice in (
        (f"{python_beside.parent}:{other_python.parent}", ""),
        (
            f"{other_python.parent}:/bin",
            f", in the folder of this command; PATH has {other_python}",
        ),
    ):
        for _ in range(5):  # a busy machine may not answer in time
            _, output, errors = run(farandole, "doctor", "--json", path=path)
            (row,) = (row for row in json.loads(output) if row["name"] == "python3")
            if row["found"] != "no answer within 10 s":
                break
        assert (row["state"], errors) == ("works", "")
        assert row["found"] == f"{version} at {sys.executable}{notice}"


def test_python_m_farandole_is_the_command() -> None:
    module = (sys.executable, "-m", "farandole")
    assert run(*module, "--version") == run(command(), "--version")
    assert run(*module, "nonsense") == run(command(), "nonsense")
    words = ("run", "-n", "2", "sh", "-c", 'exit "$FARANDOLE_RANK"')
    assert run(*module, *words)[0] == 1
