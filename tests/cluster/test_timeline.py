"""The timeline of real jobs: every file is valid, and has the calls of every rank."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from launched import CommandRun, run
from trace_file import Trace, read_trace

WORKER = str(Path(__file__).with_name("traced_worker.py"))
GRADIENT_CALL = "allreduce.grad/fc"


def record_trace(size: int, path: Path, action: str, *options: str) -> tuple[Trace, CommandRun]:
    job = run(
        *("run", "-n", str(size), "--timeline", str(path), *options, sys.executable, WORKER, action)
    )
    assert job.process.returncode == 0, job.output + job.errors
    return read_trace(path), job


def test_every_rank_records_every_call(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of yesterday")
    trace, job = record_trace(3, path, "make_calls")
    assert trace.ranks.keys() == {0, 1, 2}
    for rank in range(3):
        assert re.fullmatch(rf"rank {rank} \(pid \d+\)", trace.ranks[rank])
        escaped = 'allreduce.a "b" \\c\\x0a    \\x1b[31m\\x7f ünï {[,:]}'
        assert trace.names(rank) == {
            GRADIENT_CALL,
            escaped,
            "allgather.noname.0",
            "barrier.noname.0",
        }
        negotiate, execute = trace.slices[rank, GRADIENT_CALL]
        assert (negotiate.name, execute.name) == ("NEGOTIATE_ALLREDUCE", "ALLREDUCE")
        assert negotiate.begin <= negotiate.end == execute.begin <= execute.end
        assert execute.arguments == {"dtype": "float64", "shape": "[6]", "bytes": 48}
        gather = trace.slices[rank, "allgather.noname.0"][1]
        assert gather.arguments["shape"] == f"[{3 * (rank + 1)}]"
        assert [s.name for s in trace.slices[rank, "barrier.noname.0"]] == [
            "NEGOTIATE_BARRIER",
            "BARRIER",
        ]
    assert (trace.unfinished, trace.notices) == ([], [])
    assert "timeline" not in job.errors


def test_ranks_have_one_clock(tmp_path: Path) -> None:
    trace, _ = record_trace(2, tmp_path / "trace.json", "make_calls")
    # No rank may finish a call before the other rank has begun it.
    for name in (GRADIENT_CALL, "barrier.noname.0"):
        begin_times = [trace.slices[rank, name][0].begin for rank in range(2)]
        end_times = [trace.slices[rank, name][1].end for rank in range(2)]
        assert max(begin_times) <= min(end_times), name
    assert trace.start["start_time_since_epoch_in_micros"] > 1_700_000_000_000_000


def test_a_job_writes_two_files_one_after_another(tmp_path: Path) -> None:
    paths = tmp_path / "one.json", tmp_path / "two.json"
    job = run("run", "-n", "2", sys.executable, WORKER, "write_two_files", *map(str, paths))
    assert job.process.returncode == 0, job.output + job.errors
    for path, name in zip(paths, ("one", "two"), strict=True):
        trace = read_trace(path)
        assert set(trace.slices) == {(rank, f"allreduce.{name}") for rank in range(2)}


def test_horovods_variable_may_hold_a_relative_path(tmp_path: Path) -> None:
    script = f'cd "{tmp_path}" && exec "{sys.executable}" "{WORKER}" make_calls'
    job = run(*"run -n 2 sh -c".split(), script, environment={"HOROVOD_TIMELINE": "trace.json"})
    assert job.process.returncode == 0, job.output + job.errors
    assert read_trace(tmp_path / "trace.json").ranks.keys() == {0, 1}


def test_dynamic_does_not_name_a_file(tmp_path: Path) -> None:
    script = f'cd "{tmp_path}" && exec "{sys.executable}" "{WORKER}" write_two_files one two'
    job = run(*"run -n 2 sh -c".split(), script, environment={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert job.process.returncode == 0, job.output + job.errors
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_tensors_beyond_the_limit_share_a_track(tmp_path: Path) -> None:
    trace, _ = record_trace(2, tmp_path / "trace.json", "make_named_calls")
    for rank in range(2):
        rank_slices = [s for key, slices in trace.slices.items() if key[0] == rank for s in slices]
        assert sum(s.name == "ALLREDUCE" for s in rank_slices) == 6000
        further_slices = trace.slices[rank, "further tensors"]
        assert {s.arguments["tensor"] for s in further_slices if s.name == "ALLREDUCE"} >= {
            f"step 5 tensor {number}" for number in range(1000)
        }


def test_the_file_is_bounded_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace, _ = record_trace(2, path, "fill_the_file", "--timeline-bytes", "100000")
    assert 80_000 < path.stat().st_size < 110_000
    names = [(event["pid"], event["name"]) for event in trace.notices]
    expected = [(rank, name) for rank in (0, 1) for name in ("TIMELINE_IS_FULL", "CALLS_LEFT_OUT")]
    assert sorted(names) == sorted(expected)
    for rank in range(2):
        recorded = sum(s.name == "ALLREDUCE" for s in trace.slices[rank, "allreduce.a"])
        (left_out,) = (
            e["args"]["calls"] for e in trace.notices if e["pid"] == rank and "calls" in e["args"]
        )
        assert recorded + left_out == 3000


def test_a_killed_rank_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = ("run", "-n", "3", "--timeline", str(path))
    job = run(*options, sys.executable, WORKER, "kill_last_rank", str(path))
    assert job.process.returncode == 137, job.output + job.errors
    trace = read_trace(path)  # the other ranks have closed the file properly
    assert trace.ranks.keys() == {0, 1, 2}
    for rank in range(3):
        assert trace.slices[rank, "allreduce.a"]


def test_a_killed_job_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = ("run", "-n", "1", "--timeline", str(path))
    job = run(*options, sys.executable, WORKER, "kill_last_rank", str(path))
    assert job.process.returncode == 137, job.output + job.errors
    assert read_trace(path, complete=False).slices[0, "allreduce.a"]


@pytest.mark.parametrize("size", [1, 2])
def test_a_wrong_path_is_reported_once_and_the_job_goes_on(tmp_path: Path, size: int) -> None:
    path = tmp_path / "no" / "trace.json"
    job = run(
        *("run", "-n", str(size), "--timeline", str(path), "--log-hide-time"),
        *(sys.executable, WORKER, "make_calls"),
    )
    assert job.process.returncode == 0, job.output + job.errors
    message = f"the timeline cannot be written to `{path}`: No such file or directory"
    assert job.errors.count(message) == 1, job.errors
    assert "; the job goes on without it" in job.errors


def test_missing_room_is_reported_once_and_the_job_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    _, job = record_trace(1, path, "limit_file_size", "--log-hide-time")
    assert "went on" in job.output
    assert job.errors.count("File too large; the job goes on without it") == 1, job.errors
    assert path.stat().st_size <= 2000


def test_wrong_paths_raise_errors_in_python(tmp_path: Path) -> None:
    job = run(
        "run", "-n", "1", "--prefix", "", sys.executable, WORKER, "print_path_errors", str(tmp_path)
    )
    assert job.process.returncode == 0, job.output + job.errors
    message_start = "reported: the timeline cannot be written to"
    assert job.output.splitlines() == [
        f"{message_start} `{tmp_path}`: Is a directory",
        f"{message_start} `{tmp_path}/no/trace.json`: No such file or directory",
        f"{message_start} ``: No such file or directory",
        "reported: file_path has a zero byte in it; got 'zero\\x00byte'",
        "reported: file_path must be a path; got 7",
    ]


def test_a_forked_child_neither_holds_nor_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    job = run("run", "-n", "2", "--prefix", "", sys.executable, WORKER, "fork_child", str(path))
    assert job.process.returncode == 0, job.output + job.errors
    assert job.output.count("only the process that called init() can use farandole") == 2
    trace = read_trace(path)
    assert [len(trace.slices[rank, "allreduce.a"]) for rank in range(2)] == [4, 4]
