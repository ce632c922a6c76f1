"""The timeline of an elastic job: one file has the calls of all workers in all groups."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import SshHosts, kill, make_ssh_hosts
from launched import TIMEOUT_SECONDS, CommandRun, run
from launched import kill as kill_worker
from test_elastic import QUICK_RESTART, WORKER, elastic_words, new_workers
from test_elastic_hosts import FLAGS, first_launcher, read_start
from trace_file import COLLECTION_NOTICE, Trace, read_trace

STEP_CALL = "allreduce.step"
# The members of one group: the rank of each worker, by its slot.
Ranks = dict[int, int]


def groups_of(trace: Trace) -> dict[int, Ranks]:
    """Return the groups that the marks `GROUP` of a trace show, by epoch. Check that the sizes in
    the marks are right."""
    groups: dict[int, Ranks] = defaultdict(dict)
    sizes = defaultdict(set)
    for mark in trace.notices:
        assert mark["name"] == "GROUP", mark
        epoch = mark["args"]["epoch"]
        assert mark["pid"] not in groups[epoch], "two marks for one group"
        groups[epoch][mark["pid"]] = mark["args"]["rank"]
        sizes[epoch].add(mark["args"]["size"])
    for epoch, ranks in groups.items():
        assert sizes[epoch] == {len(ranks)}, (epoch, ranks)
        assert sorted(ranks.values()) == list(range(len(ranks)))
    return dict(groups)


def calls_by_group(path: Path, slot: int) -> dict[int, int]:
    """Return how many calls of the training the worker of a slot has begun in each group, by
    epoch."""
    calls: dict[int, int] = defaultdict(int)
    epoch, threads = 0, set()
    for event in json.loads(path.read_text()):
        if event["pid"] != slot:
            continue
        if event.get("name") == "GROUP":
            epoch = event["args"]["epoch"]
        if event.get("name") == "thread_name" and event["args"]["name"] == STEP_CALL:
            threads.add(event["tid"])
        if event.get("name") == "ALLREDUCE" and event["tid"] in threads:
            calls[epoch] += 1
    return dict(calls)


def check_three_groups(path: Path, workers: int, lost_slot: int) -> None:
    trace = read_trace(path)
    assert trace.ranks == {slot: f"worker {slot}" for slot in range(workers)}
    first_ranks, second_ranks, third_ranks = (
        ranks for _, ranks in sorted(groups_of(trace).items())
    )
    assert set(first_ranks) == set(third_ranks) == set(range(workers))
    assert set(second_ranks) == set(range(workers)) - {lost_slot}
    epochs = sorted(groups_of(trace))
    for slot in range(workers):
        calls = calls_by_group(path, slot)
        assert sorted(calls) == [e for e in epochs if slot in groups_of(trace)[e]], calls
        assert min(calls.values()) > 0


def wait_until_traced(path: Path, slot: int, groups: int = 1) -> None:
    """Wait until the file has calls of this slot in `groups` groups. Without this wait, a killed
    worker could lose its last events."""
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while True:
        # A write may be under way, or the file may not exist yet.
        with contextlib.suppress(OSError, ValueError):
            if len(calls_by_group(path, slot)) >= groups:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_file_has_all_groups(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of yesterday")
    flags = (*QUICK_RESTART, "--timeline", str(path))
    environment = new_workers(3, go_file := tmp_path / "go")
    with CommandRun(*elastic_words(3, *WORKER, flags=flags), environment=environment) as job:
        wait_until_traced(path, 2)
        kill_worker(job, 2)
        job.read_until("of 2 at batch", times=2)
        go_file.touch()
        assert job.end() == 0, job.errors
    check_three_groups(path, 3, 2)


def test_hosts_that_share_their_files_have_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = ("-H", "127.0.0.1:1,127.0.0.2:1", "--timeline", str(path), *FLAGS)
    words = (*words, sys.executable, *WORKER)
    environment = new_workers(2, go_file := tmp_path / "go")
    with CommandRun("run", *words, environment=environment) as job:
        wait_until_traced(path, 1)
        kill_worker(job, 1)
        job.read_until("of 1 at batch")
        go_file.touch()
        assert job.end() == 0, job.errors
    check_three_groups(path, 2, 1)
    assert "timeline" not in job.errors.replace(COLLECTION_NOTICE, "")


STARTS_AND_STOPS = """
import os, signal, time, torch, farandole.torch as hvd
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
while number > 1 and not os.path.exists({folder!r} + f"/alone {{number - 1}}"):
    time.sleep(0.01)
hvd.init()
os.chdir({folder!r})
if number < 3:
    hvd.start_timeline("trace.json")
os.chdir("/")
state = hvd.elastic.TorchState(kills=0, steps=0)
@hvd.elastic.run
def train(state):
    if hvd.size() == 1:
        open({folder!r} + f"/alone {{state.kills}}", "w").close()
    while state.steps < 10:
        hvd.allreduce(torch.ones(1), name="step")
        state.steps += hvd.size() == 2
        kills = state.steps == 10 and state.kills < 2
        if kills:
            state.kills, state.steps = state.kills + 1, 0
            if state.kills == 2:
                hvd.stop_timeline()
        state.commit()
        if kills and hvd.rank() == 1:
            if state.kills == 1:
                hvd.stop_timeline()  # writes the events
            os.kill(os.getpid(), signal.SIGKILL)
train(state)
"""


def test_a_timeline_that_the_program_starts_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    program = STARTS_AND_STOPS.format(folder=str(tmp_path))
    job = run(*elastic_words(2, "-c", program))
    assert job.process.returncode == 0, job.errors
    trace = read_trace(path)
    groups = groups_of(trace)
    assert [set(ranks) for ranks in groups.values()] == [{0, 1}, {0}, {0, 1}], trace.notices
    assert set(calls_by_group(path, 0)) == set(groups)


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def clock_error(path: Path) -> float:
    """Return the largest error of the clocks that the file mentions, in microseconds."""
    return max(float(error) for error in re.findall(r"clock ± (\d+) µs", path.read_text()))


def test_node_0_without_workers_gets_the_events_of_all_hosts(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    path = folder / "trace.json"
    words = ("-H", "host1:1,host2:1", "--timeline", str(path), *FLAGS, *(sys.executable, *WORKER))
    environment = new_workers(2)
    with (
        ssh_hosts.hide_folder(1, folder),
        ssh_hosts.hide_folder(2, folder),
        ssh_hosts.start(*words, environment=environment) as job,
    ):
        read_start(job, 2)
        # The launcher that replaces node 0's launcher begins with an empty store.
        kill(first_launcher(ssh_hosts, "agent"))
        job.read_until("of 2 at batch", times=4)
        for node in (1, 2):
            wait_until_traced(ssh_hosts.path_on_host(node, path), node - 1, groups=2)
        assert not path.exists()
        kill_worker(job, 1)
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert "timeline" not in job.errors.replace(COLLECTION_NOTICE, "")
    trace = read_trace(path)
    groups = groups_of(trace)
    assert [set(ranks) for ranks in groups.values()].count({0, 1}) >= 3
    for slot in (0, 1):
        assert set(calls_by_group(path, slot)) == {e for e in groups if slot in groups[e]}
    # The events of both hosts have times of one clock, so no call ends before the other rank has
    # begun it.
    for number in range(10):
        calls = [trace.slices[slot, STEP_CALL][2 * number : 2 * number + 2] for slot in (0, 1)]
        last_begin = max(negotiate.begin for negotiate, _ in calls)
        assert last_begin <= min(call.end for _, call in calls) + 2 * clock_error(path), calls
