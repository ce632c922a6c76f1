"""`farandole bench`: its results, and its messages about wrong arguments.

The tests assert no times, because the machine may be busy.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
from pathlib import Path

import pytest
from launched import CommandRun, command, run

OPERATIONS = ["allreduce", "reducescatter", "allgather", "broadcast", "alltoall"]
KEYS = (
    "operation bytes ranks dtype memory consume p50_us p99_us algbw_gbps busbw_gbps verified"
).split()
# busbw_gbps divided by algbw_gbps, as nccl-tests defines it.
BUS_FACTORS = {"allreduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1}


def bus_factor(operation: str, ranks: int) -> float:
    return BUS_FACTORS.get(operation, lambda n: (n - 1) / n)(ranks)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, []),
        (2, ["--consume"]),
        (3, ["--memory", "ordinary", "--dtype", "bfloat16"]),
        (4, ["--dtype", "int8", "--consume", "--memory", "ordinary"]),
    ],
)
def test_every_result_is_complete_and_verified(
    tmp_path: Path, operation: str, ranks: int, words: list[str]
) -> None:
    file = tmp_path / "result.json"
    arguments = ["-n", str(ranks), "--sizes", "1,24K", "--json", str(file), *words]
    launched = run("bench", operation, *arguments)
    assert launched.process.returncode == 0, launched.errors
    assert "p50 us" in launched.output and "\x1b" not in launched.output + launched.errors
    assert launched.output.count(" yes\n") == 2
    rows = json.loads(file.read_text())
    assert len(rows) == 2
    dtype = words[words.index("--dtype") + 1] if "--dtype" in words else "float32"
    for row, asked in zip(rows, (1, 24 * 1024), strict=True):
        assert list(row) == KEYS
        assert (row["operation"], row["ranks"], row["dtype"]) == (operation, ranks, dtype)
        assert row["memory"] == ("ordinary" if "ordinary" in words else "heap")
        assert row["consume"] is ("--consume" in words) and row["verified"] is True
        assert asked <= row["bytes"] < asked + 4 * ranks
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["algbw_gbps"] == pytest.approx(row["bytes"] / row["p50_us"] / 1e3)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * bus_factor(operation, ranks))


def test_large_sizes_rotate_buffers() -> None:
    """For tensors that are larger than any L2 cache, the benchmark uses several buffers in turn."""
    launched = run("bench", "allreduce", "-n", "2", "--sizes", "16M", "--consume")
    assert launched.process.returncode == 0, launched.errors
    assert "16 MiB" in launched.output and launched.output.endswith(" yes\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which operation? For example `farandole bench allreduce -n 2`"),
        (
            ["allrduce"],
            'the operation "allrduce" is unknown; the choices are allreduce, reducescatter,',
        ),
        (["barrier"], 'the operation "barrier" is unknown'),
        (["allreduce", "--sizes", "8,1Q"], '--sizes: "1Q" is not a size; write bytes'),
        (["allreduce", "--sizes", "8,,1"], '--sizes: "" is not a size'),
        (["allreduce", "--sizes", "0"], '--sizes: "0" is not a size'),
        (["allreduce", "--sizes", "1025G"], '--sizes: "1025G" is not a size'),
        (["allreduce", "--sizes", "99999999999G"], "is not a size"),
        (
            ["allreduce", "--dtype", "float23"],
            'the --dtype "float23" is unknown; the choices are int8,',
        ),
        (
            ["allreduce", "--memory", "gpu"],
            'the --memory "gpu" is unknown; the choices are heap and',
        ),
        (["allreduce", "-n", "0"], '-n is "0"; it must be a whole number from 1 to'),
        (["allreduce", "--json", "/nowhere/x"], '--json "/nowhere/x": it cannot be written (No'),
    ],
)
def test_wrong_arguments_are_explained(words: list[str], message: str) -> None:
    launched = run("bench", *words)
    assert launched.process.returncode == 2
    assert message in launched.errors and "farandole bench --help" in launched.errors
    assert launched.output == ""


def test_a_rank_without_memory_ends_the_job() -> None:
    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    words = ["allreduce", "-n", "2", "--sizes", "8,4G", "--memory", "ordinary"]
    with CommandRun("bench", *words, before_exec=little_memory) as launched:
        assert launched.end() == 1
        assert launched.remaining_processes() == []
    assert "no memory for 4 GiB; choose smaller --sizes" in launched.errors
    assert "the job has failed" in launched.errors


def test_an_interrupted_run_keeps_what_it_has_measured(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("what another run has left")
    words = ["allreduce", "-n", "2", "--sizes", "8," + ",".join(["64M"] * 100)]
    with CommandRun("bench", *words, "--json", str(file)) as launched:
        launched.read_until(" yes\n")
        launched.send(signal.SIGINT)
        assert launched.end() == 128 + signal.SIGINT
        assert launched.remaining_processes() == []
    rows = json.loads(file.read_text())
    assert 1 <= len(rows) < 100
    assert rows[0]["bytes"] == 8 and rows[0]["verified"] is True


def test_nothing_is_left_of_an_earlier_run(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("what another run has left")
    environment = {"FARANDOLE_HEAP_BYTES": str(4 << 20)}
    words = ["allreduce", "-n", "3", "--sizes", "16M", "--json", str(file)]
    launched = run("bench", *words, environment=environment)
    assert launched.process.returncode == 1
    assert json.loads(file.read_text()) == []
    assert launched.errors.count("has no room for 16 MiB") == 1, launched.errors


def test_heap_memory_is_the_shared_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_HEAP_BYTES", str(4 << 20))
    launched = run("bench", "allreduce", "-n", "2", "--sizes", "8,16M", "--memory", "heap")
    assert launched.process.returncode == 1
    assert "the heap that the ranks share has no room for 16 MiB" in launched.errors
    assert "FARANDOLE_HEAP_BYTES" in launched.errors


def test_a_terminal_shows_progress_and_colors() -> None:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
        os.environ.pop("NO_COLOR", None)
        os.execv(command(), ["farandole", "bench", "allreduce", "-n", "2", "--sizes", "8"])
    text = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the program has closed its terminal
            break
        if not piece:
            break
        text += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(descriptor)
    assert b"warming up" in text and b"\x1b[1m" in text and b"yes" in text
