"""`horovodrun` behaves like Horovod's command. These tests need no framework."""

from __future__ import annotations

import importlib
import re
import signal
import socket
from pathlib import Path

import pytest
from horovod_launched import horovodrun

import farandole
import horovod


def sorted_lines_of(script: str, *flags: str, workers: int = 2) -> list[str]:
    """Return the lines that the workers have written, sorted."""
    completed = horovodrun("-np", str(workers), *flags, "sh", "-c", script)
    assert completed.returncode == 0, completed.stderr
    return sorted(completed.stdout.splitlines())


def test_lines_carry_rank_and_stream() -> None:
    completed = horovodrun("-np", "2", "sh", "-c", "echo out; echo err >&2")
    assert sorted(completed.stdout.splitlines()) == ["[0]<stdout>:out", "[1]<stdout>:out"]
    errors = [line for line in completed.stderr.splitlines() if line.startswith("[")]
    assert sorted(errors) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_workers_do_not_ignore_sigpipe() -> None:
    """Python ignores SIGPIPE. A program that Python executes would ignore it, too, unless
    horovodrun restores the default."""
    ignored = (
        "while read name mask; do [ $name != SigIgn: ] || echo $mask; done < /proc/self/status"
    )
    (line,) = sorted_lines_of(ignored, workers=1)
    mask = int(line.rpartition(":")[2], 16)
    assert mask & (1 << (signal.SIGPIPE - 1)) == 0


def test_the_time_stands_before_the_rank() -> None:
    (line,) = sorted_lines_of("echo out", "--prefix-output-with-timestamp", workers=1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\[0\]<stdout>:out", line)


def test_workers_get_horovods_variables() -> None:
    names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME CONTROLLER".split()
    script = "echo " + " ".join(f"$HOROVOD_{name}" for name in [*names, "CPU_OPERATIONS"])
    host = socket.gethostname()
    assert sorted_lines_of(script) == [
        f"[{rank}]<stdout>:{rank} 2 {rank} 2 0 1 {host} gloo gloo" for rank in (0, 1)
    ]


def test_flags_win_over_the_file_and_the_file_over_variables(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("stall_check: {warning_time_seconds: 20}\nlogging: {level: INFO}\n")
    completed = horovodrun(
        *("-np", "1", "--config-file", file, "--log-level", "DEBUG", "-H", "localhost:1"),
        *("sh", "-c", "echo $FARANDOLE_LOG_LEVEL $FARANDOLE_STALL_WARNING"),
        environment={"HOROVOD_STALL_CHECK_TIME_SECONDS": "30"},
    )
    assert completed.stdout == "[0]<stdout>:debug 20\n"


def test_output_goes_to_files_too(tmp_path: Path) -> None:
    sorted_lines_of("echo out $HOROVOD_RANK", "--output-filename", str(tmp_path / "log"))
    for rank in (0, 1):
        assert (tmp_path / f"log/rank.{rank}/stdout").read_text() == f"out {rank}\n"


def test_a_flag_without_meaning_is_reported_once() -> None:
    completed = horovodrun("-np", "2", "--gloo", "--cycle-time-ms", "5", "sh", "-c", "true")
    lines = [line for line in completed.stderr.splitlines() if "no meaning" in line]
    assert [line.split()[1] for line in lines] == ["--cycle-time-ms", "--gloo"]


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    completed = horovodrun(
        "-np", "2", "sh", "-c", '[ "$HOROVOD_RANK" = 1 ] && exit 7; exec sleep 1000'
    )
    assert completed.returncode == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sh"], "how many workers?"),
        (["-np", "2"], "which command?"),
        (["-np", "2", "-H", "localhost:1", "sh"], "2 workers are asked for, and the hosts have 1"),
        (["-np", "2", "--config-file", "/nowhere.yaml", "sh"], "No such file"),
    ],
)
def test_a_wrong_command_line_is_explained(words: list[str], message: str) -> None:
    completed = horovodrun(*words)
    assert completed.returncode == 2
    assert completed.stderr.startswith("horovodrun: ") and message in completed.stderr
    assert completed.stderr.endswith("See `horovodrun --help`.\n")


def test_check_build_shows_what_works() -> None:
    completed = horovodrun("--check-build")
    assert completed.returncode == 0, completed.stderr
    first_lines = f"Horovod v{horovod.__version__} (farandole {farandole.__version__}):\n\n"
    frameworks = "Available Frameworks:\n    [X] TensorFlow\n    [X] PyTorch\n    [ ] MXNet\n\n"
    assert completed.stdout.startswith(first_lines + frameworks + "Available Controllers:\n")
    assert "    [X] Gloo\n\nAvailable Tensor Operations:\n    [ ] NCCL\n" in completed.stdout


def test_version_names_horovods_version_and_ours() -> None:
    text = horovodrun("--version").stdout
    assert text == f"0.28.1 (farandole {farandole.__version__})\n"


@pytest.mark.parametrize("name", ["mxnet", "spark", "ray"])
def test_frameworks_that_do_not_work_yet_say_so(name: str) -> None:
    with pytest.raises(ImportError, match=r"Farandole does not work with \w+ yet"):
        importlib.import_module(f"horovod.{name}")
