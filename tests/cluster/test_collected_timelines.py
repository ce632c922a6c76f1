"""The timeline of a job over several hosts: node 0's file gets the events of all ranks.

The hosts share the files of this machine. So in most tests, each node gets a different path for its
file.
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
from launched import CommandRun, run
from test_hosts import Hosts, Job, reason_if_impossible
from test_stalls import read_errors_until
from test_timeline import GRADIENT_CALL, WORKER
from trace_file import COLLECTION_NOTICE, read_trace

WHY_IMPOSSIBLE = reason_if_impossible()
pytestmark = pytest.mark.skipif(bool(WHY_IMPOSSIBLE), reason=WHY_IMPOSSIBLE)
WORKERS = (2, 1, 1)  # the number of workers of each node


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(len(WORKERS)) as hosts:
        yield hosts


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Iterator[Job]:
    secret = tmp_path / "secret"
    assert run("secret", str(secret)).process.returncode == 0
    job = Job(hosts, secret)
    try:
        yield job
    finally:
        job.close()


def traced_worker_command(action: str, *paths: Path) -> str:
    return shlex.join([sys.executable, WORKER, action, *map(str, paths)])


def start(job: Job, node: int, path: Path, script: str, nodes: int = 2) -> CommandRun:
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
    launched = [
        start(job, node, path, traced_worker_command("make_calls"), nodes)
        for node, path in enumerate(paths)
    ]
    assert job.end() == [0] * nodes, [launcher.errors for launcher in launched]
    ranks = list(range(sum(WORKERS[:nodes])))
    trace = read_trace(paths[0])
    assert sorted(trace.ranks) == named_ranks(paths[0]) == ranks
    for rank in ranks:
        for name in (GRADIENT_CALL, "allgather.noname.0", "barrier.noname.0"):
            assert len(trace.slices[rank, name]) == 2, (rank, name)
    assert (trace.unfinished, trace.notices) == ([], [])
    for launcher in launched:
        assert "timeline" not in launcher.errors.replace(COLLECTION_NOTICE, "")
    if files == ("0", "1", "2"):
        assert [sorted(read_trace(path).ranks) for path in paths[1:]] == [[2], [3]]


def test_a_failing_worker_changes_neither_codes_nor_messages(job: Job, tmp_path: Path) -> None:
    # A worker that ignores SIGTERM has 10 s instead of 5 s to end by itself.
    script = (
        f"trap '' TERM; {traced_worker_command('make_calls')} && if test $RANK = 2; then exit 7; fi"
    )
    node_0, node_1 = (start(job, node, tmp_path / str(node), script) for node in range(2))
    assert job.end() == [7, 7]
    assert "rank 2 (pid " in node_0.errors and "has exited with code 7" in node_0.errors
    assert "node 1 (" in node_0.errors and "rank 2" in node_1.errors
    assert "timeline" not in (node_0.errors + node_1.errors).replace(COLLECTION_NOTICE, "")
    assert sorted(read_trace(tmp_path / "0").ranks) == [0, 1, 2]


def test_the_events_of_a_killed_rank_arrive(job: Job, tmp_path: Path) -> None:
    paths = [tmp_path / str(node) for node in range(2)]
    for node, path in enumerate(paths):
        start(job, node, path, traced_worker_command("kill_last_rank", paths[1]))
    codes = job.end()
    assert codes[1] == 128 + signal.SIGKILL and codes[0] != 0
    trace = read_trace(paths[0])
    assert sorted(trace.ranks) == [0, 1, 2]
    assert len(trace.slices[2, "allreduce.a"]) > 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_missing_file_is_one_line(job: Job, tmp_path: Path, node: int) -> None:
    paths = [tmp_path / str(number) for number in range(2)]
    scripts = [traced_worker_command("make_calls")] * 2
    scripts[node] += f"; rm -f {paths[node]}"
    node_0, node_1 = (start(job, number, paths[number], scripts[number]) for number in range(2))
    assert job.end() == [0, 0]
    errors = (node_0.errors + node_1.errors).replace(COLLECTION_NOTICE, "")
    lines = [line for line in errors.splitlines() if "timeline" in line]
    missing_path = f"`{paths[node]}`"
    assert len(lines) == 1 and missing_path in lines[0], lines
    assert "No such file or directory" in lines[0]
    assert paths[1 - node].exists() and not paths[node].exists()


def test_ctrl_c_ends_the_collection(job: Job, tmp_path: Path) -> None:
    """The test stops the launcher of node 1 when the workers of this node have ended, so this
    launcher never sends the events of its workers."""
    go_file = tmp_path / "go"
    os.mkfifo(go_file)
    paths = [tmp_path / str(node) for node in range(2)]
    wait = (
        f"{traced_worker_command('make_calls')}; if test $RANK = 0; then read line < {go_file}; fi"
    )
    node_0 = start(job, 0, paths[0], wait)
    node_1 = start(job, 1, paths[1], f'echo "agent $PPID"; {traced_worker_command("make_calls")}')
    read_errors_until(node_1, "all workers of this node have ended; waiting for those of the other")
    agent = int(re.findall(r"agent (\d+)", read_output(node_1))[0])
    os.kill(agent, signal.SIGSTOP)
    try:
        go_file.write_text("\n")
        read_errors_until(node_0, "collecting the timelines of the other nodes; Ctrl-C ends this")
        node_0.send(signal.SIGINT)
        assert node_0.end() == 0
    finally:
        os.kill(agent, signal.SIGCONT)
    assert node_1.end() == 0
    assert node_0.errors.count("may lack events of node 1: SIGINT has ended the collection") == 1
    assert sorted(read_trace(paths[0]).ranks) == [0, 1]


def read_output(launched: CommandRun) -> str:
    launched.read_until("agent ")
    return launched.output
