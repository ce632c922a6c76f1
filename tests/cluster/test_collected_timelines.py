"""The timeline of a job over several hosts: node 0's file gets the events of all ranks.

The hosts share the files of this machine, so each node gets a path of its own, unless the test says
otherwise.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched, run
from test_hosts import Hosts, Job, why_impossible
from test_stalls import read_errors_until
from test_timeline import GRAD, WORKER
from trace_file import read_trace

WHY_IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(bool(WHY_IMPOSSIBLE), reason=WHY_IMPOSSIBLE)
WORKERS = (2, 1, 1)  # by node


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(len(WORKERS)) as made:
        yield made


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Iterator[Job]:
    secret = tmp_path / "secret"
    assert run("secret", str(secret)).process.returncode == 0
    made = Job(hosts, secret)
    try:
        yield made
    finally:
        made.close()


def traced(action: str, *paths: Path) -> str:
    return shlex.join([sys.executable, WORKER, action, *map(str, paths)])


def start(job: Job, node: int, path: Path, script: str, nodes: int = 2) -> Launched:
    options = ("--nodes", str(nodes), "--timeline", str(path))
    return job.start(node, script, *options, workers=WORKERS[node])


def named_ranks(path: Path) -> list[int]:
    """Return the ranks of the lines that name a process, in ascending order."""
    events = json.loads(path.read_text())
    return sorted(event["pid"] for event in events if event.get("name") == "process_name")


@pytest.mark.parametrize(
    "files",
    [("0", "1"), ("0", "1", "2"), ("all", "all"), ("all", "all", "all"), ("0", "1", "1")],
    ids=" ".join,
)
def test_one_file_has_every_event_once(job: Job, tmp_path: Path, files: tuple[str, ...]) -> None:
    nodes = len(files)
    paths = [tmp_path / file for file in files]
    launched = [start(job, node, path, traced("calls"), nodes) for node, path in enumerate(paths)]
    assert job.end() == [0] * nodes, [launcher.errors for launcher in launched]
    ranks = list(range(sum(WORKERS[:nodes])))
    trace = read_trace(paths[0])
    assert sorted(trace.ranks) == named_ranks(paths[0]) == ranks
    for rank in ranks:
        for name in (GRAD, "allgather.noname.0", "barrier.noname.0"):
            assert len(trace.slices[rank, name]) == 2, (rank, name)
    assert (trace.unfinished, trace.notices) == ([], [])
    for launcher in launched:
        assert "timeline" not in launcher.errors
    if files == ("0", "1", "2"):
        assert [sorted(read_trace(path).ranks) for path in paths[1:]] == [[2], [3]]


def test_a_failing_worker_changes_neither_codes_nor_messages(job: Job, tmp_path: Path) -> None:
    # Without SIGTERM, the other workers have 7 s instead of 2 s to end by themselves.
    script = f"trap '' TERM; {traced('calls')} && if test $RANK = 2; then exit 7; fi"
    zero, one = (start(job, node, tmp_path / str(node), script) for node in range(2))
    assert job.end() == [7, 7]
    assert "rank 2 (pid " in zero.errors and "has exited with code 7" in zero.errors
    assert "node 1 (" in zero.errors and "rank 2" in one.errors
    assert "timeline" not in zero.errors + one.errors
    assert sorted(read_trace(tmp_path / "0").ranks) == [0, 1, 2]


def test_the_events_of_a_killed_rank_arrive(job: Job, tmp_path: Path) -> None:
    paths = [tmp_path / str(node) for node in range(2)]
    for node, path in enumerate(paths):
        start(job, node, path, traced("killed", paths[1]))
    codes = job.end()
    assert codes[1] == 128 + signal.SIGKILL and codes[0] != 0
    trace = read_trace(paths[0])
    assert sorted(trace.ranks) == [0, 1, 2]
    assert len(trace.slices[2, "allreduce.a"]) > 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_missing_file_is_one_line(job: Job, tmp_path: Path, node: int) -> None:
    paths = [tmp_path / str(number) for number in range(2)]
    scripts = [traced("calls")] * 2
    scripts[node] += f"; rm -f {paths[node]}"
    zero, one = (start(job, number, paths[number], scripts[number]) for number in range(2))
    assert job.end() == [0, 0]
    lines = [line for line in (zero.errors + one.errors).splitlines() if "timeline" in line]
    missing = f"`{paths[node]}`"
    assert len(lines) == 1 and missing in lines[0], lines
    assert "No such file or directory" in lines[0]
    assert paths[1 - node].exists() and not paths[node].exists()


def test_ctrl_c_ends_the_collection(job: Job, tmp_path: Path) -> None:
    """The launcher of node 1 is stopped when its workers have ended, so it sends nothing."""
    go = tmp_path / "go"
    os.mkfifo(go)
    paths = [tmp_path / str(node) for node in range(2)]
    wait = f"{traced('calls')}; if test $RANK = 0; then read line < {go}; fi"
    zero = start(job, 0, paths[0], wait)
    one = start(job, 1, paths[1], f'echo "agent $PPID"; {traced("calls")}')
    read_errors_until(one, "all workers of this node have ended; waiting for those of the other")
    agent = int(re.findall(r"agent (\d+)", read_output(one))[0])
    os.kill(agent, signal.SIGSTOP)
    try:
        go.write_text("\n")
        read_errors_until(zero, "collecting the timelines of the other nodes; Ctrl-C ends this")
        zero.send(signal.SIGINT)
        assert zero.end() == 0
    finally:
        os.kill(agent, signal.SIGCONT)
    assert one.end() == 0
    assert zero.errors.count("may lack events of node 1: SIGINT has ended the collection") == 1
    assert sorted(read_trace(paths[0]).ranks) == [0, 1]


def read_output(launched: Launched) -> str:
    launched.read_until("agent ")
    return launched.output
