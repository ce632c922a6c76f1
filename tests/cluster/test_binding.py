"""`farandole run --bind-to`: which cores the workers may use, and how many threads they get."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable

import pytest
from launched import CommandRun, run

Cores = dict[int, set[int]]

SHOW_CORES_PROGRAM = (
    "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)"
)
USABLE_CORES = sorted(os.sched_getaffinity(0))


def bind_to(numbers: list[int]) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, numbers)


def cores_of_workers(
    workers: int, *words: str, before_exec: Callable[[], object] | None = None
) -> tuple[Cores, list[int], str]:
    """Return, by rank, the cores that a worker may use and its number of threads. Return also the
    launcher's messages."""
    arguments = ("run", "-n", str(workers), *words, sys.executable, "-c", SHOW_CORES_PROGRAM)
    with CommandRun(*arguments, before_exec=before_exec) as job:
        assert job.end() == 0, job.errors
    matches = re.findall(r"\[(\d+)\] \[(.*)\] (\d+)", job.output)
    assert len(matches) == workers, job.output
    matches.sort(key=lambda one: int(one[0]))
    cores = {int(rank): {int(core) for core in listed.split(",")} for rank, listed, _ in matches}
    return cores, [int(threads) for _, _, threads in matches], job.errors


def skip_on_one_core() -> None:
    if len(USABLE_CORES) < 2:
        pytest.skip("there is one hardware thread only")


@pytest.mark.parametrize("words", [[], ["--bind-to", "none"], ["--bind-to=core", "--bind-to=none"]])
def test_workers_are_not_bound_by_default(words: list[str]) -> None:
    cores, _, errors = cores_of_workers(2, *words)
    assert cores == {0: set(USABLE_CORES), 1: set(USABLE_CORES)}
    assert "bound" not in errors


def test_core_gives_each_worker_cores_of_its_own() -> None:
    skip_on_one_core()
    two_cores = USABLE_CORES[:2]
    cores, threads, errors = cores_of_workers(
        2, "--bind-to", "core", before_exec=bind_to(two_cores)
    )
    if cores[0] == cores[1]:
        pytest.skip("the two hardware threads are of one core")
    assert cores == {0: {two_cores[0]}, 1: {two_cores[1]}}
    assert threads == [1, 1]
    assert (
        "OMP_NUM_THREADS=1 in every worker (2 on 2 cores, each bound to cores of its own)" in errors
    )


def test_all_cores_are_divided_without_overlap() -> None:
    skip_on_one_core()
    cores, _, _ = cores_of_workers(2, "--bind-to", "core")
    assert cores[0] | cores[1] <= set(USABLE_CORES)
    assert len(cores[0]) == len(cores[1])


def test_workers_share_cores_if_there_are_too_few() -> None:
    skip_on_one_core()
    cores, threads, errors = cores_of_workers(
        4, "--bind-to", "core", before_exec=bind_to(USABLE_CORES[:2])
    )
    assert cores[0] == cores[1]
    assert cores[2] == cores[3]
    assert threads == [1, 1, 1, 1]
    assert "each bound to one of them" in errors


def test_socket_gives_each_worker_all_cores_of_one_socket() -> None:
    last_core = USABLE_CORES[-1:]
    cores, threads, errors = cores_of_workers(
        2, "--bind-to", "socket", before_exec=bind_to(last_core)
    )
    assert cores == {0: set(last_core), 1: set(last_core)}
    assert threads == [1, 1]
    assert "OMP_NUM_THREADS=1 in every worker (2 on 1 core, each bound to one socket)" in errors


@pytest.mark.parametrize("bind_target", ["core", "socket"])
def test_the_affinity_of_the_launcher_is_a_limit(bind_target: str) -> None:
    one_core = USABLE_CORES[-1:]
    cores, _, _ = cores_of_workers(2, "--bind-to", bind_target, before_exec=bind_to(one_core))
    assert cores == {0: set(one_core), 1: set(one_core)}


@pytest.mark.parametrize("value", ["cores", "", "hwthread"])
@pytest.mark.parametrize("hosts", [[], ["-H", "localhost:1,192.0.2.1:1"]])
def test_wrong_values_start_nothing(value: str, hosts: list[str]) -> None:
    job = run("run", "-n", "2", *hosts, "--bind-to", value, "sh", "-c", "echo started")
    assert job.process.returncode == 2
    assert job.output == ""
    assert (
        f'farandole run: --bind-to "{value}" is not a part of a machine; '
        "give core, socket or none\n" in job.errors
    )


@pytest.mark.parametrize("words", [[], ["--bind-to", "core"]])
def test_status_shows_the_cores_of_bound_workers(words: list[str]) -> None:
    skip_on_one_core()
    script = "grep Cpus_allowed_list /proc/self/status; exec sleep 1000"
    with CommandRun("run", "-n", "2", *words, "sh", "-c", script) as job:
        job.read_until("Cpus_allowed_list", times=2)
        pid = str(job.process.pid)
        (shown_job,) = json.loads(run("status", pid, "--json").output)
        header = run("status", pid).output.splitlines()[2].split()
        job.process.terminate()
        job.end()
    lists = dict(re.findall(r"\[(\d)\] Cpus_allowed_list:\s(\S+)", job.output))
    shown_cores = {str(row["rank"]): row["cores"] for row in shown_job["ranks"]}
    if words and len(set(lists.values())) == 1:
        pytest.skip("the two hardware threads are of one core")
    assert shown_cores == (lists if words else {"0": None, "1": None})
    assert ("cores" in header) == bool(words)


def test_doctor_shows_what_core_would_give() -> None:
    with CommandRun("doctor", "--json", before_exec=bind_to(USABLE_CORES[:1])) as job:
        assert job.end() == 0
    (row,) = [row for row in json.loads(job.output) if row["name"] == "binding"]
    assert row["state"] == "works"
    assert row["found"] == (
        "1 socket, 1 core, 1 hardware thread; --bind-to core would give "
        f"{USABLE_CORES[0]} to one worker and {USABLE_CORES[0]} to another"
    )
