"""Elastic jobs over several hosts: workers, launchers and hosts are lost, and hosts come back."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from driven import SshHosts, kill, made_ssh_hosts
from launched import HANG_SECONDS, Launched
from test_elastic import environment_of, pids

WORKER = (sys.executable, "tests/cluster/elastic_worker.py")
FLAGS = ("--min-workers", "1", "--cooldown-range", "0,1")
NEW_WORKERS_FROM_3 = {"NEW_WORKERS_FROM": "3"}


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with made_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as made:
        yield made


def worker_of(ssh_hosts: SshHosts, node: int, number: int) -> int:
    """Return the process id of the worker with this number on a host."""
    wanted = f"FARANDOLE_ELASTIC_WORKER={number}\0"
    return next(pid for pid in ssh_hosts.processes(node) if wanted in environment_of(pid))


def ssh_of(ssh_hosts: SshHosts, job: Launched, node: int) -> int:
    """Return the process id of the driver's ssh process for a host."""
    found = ssh_hosts.find(0, "ssh -T", f"host{node}", parents=[job.process.pid])
    assert len(found) == 1
    return found[0]


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + HANG_SECONDS / 2
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_start(job: Launched, workers: int) -> None:
    for worker in range(workers):
        job.read_until(f"worker {worker} has rank {worker} of {workers} at batch 0")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_killed_worker_is_replaced_on_its_host(ssh_hosts: SshHosts, lost: int) -> None:
    with ssh_hosts.start("-H", "host0:2,host1:1", *FLAGS, *WORKER, environment=NEW_WORKERS_FROM_3) as job:
        read_start(job, 3)
        kill(worker_of(ssh_hosts, lost // 2, lost))
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids(job)) == {0, 1, 2, 3} - {lost}, job.errors
    assert f"worker {lost} (pid " in job.errors
    assert "the job goes on with 2 workers" in job.errors
    assert re.search(r"worker 3 has rank [12] of 3 at batch [1-9]", job.output)


@pytest.mark.parametrize("victim", ["launcher", "ssh"])
def test_a_lost_node_comes_back(ssh_hosts: SshHosts, victim: str) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:2", *FLAGS, *WORKER, environment=NEW_WORKERS_FROM_3
    ) as job:
        read_start(job, 3)
        kill(ssh_hosts.agents(1)[0] if victim == "launcher" else ssh_of(ssh_hosts, job, 1))
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids(job)) >= {0, 3}, job.errors
    assert not {1, 2} & set(pids(job))
    assert "node 1 (host1) is gone" in job.errors
    assert "the job goes on with 1 worker\n" in job.errors
    assert re.search(r"worker [34] has rank [12] of [23] at batch [1-9]", job.output)


def test_a_host_that_is_cut_off_comes_back(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:1,host2:1", *FLAGS, *WORKER, environment=NEW_WORKERS_FROM_3
    ) as job:
        read_start(job, 3)
        lost = worker_of(ssh_hosts, 1, 1)
        ssh_hosts.hosts[1].unplug()
        try:
            job.read_until("has rank 0 of 2")
            wait_until_ended(lost)
        finally:
            ssh_hosts.hosts[1].plug()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids(job)) == {0, 2, 3}, job.errors
    assert "node 1 (host1) is gone" in job.errors


def test_the_job_ends_with_node_0(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:1", *FLAGS, *WORKER, environment=NEW_WORKERS_FROM_3
    ) as job:
        read_start(job, 2)
        kill(ssh_hosts.agents(0)[0])
        assert job.end() != 0
        ssh_hosts.wait_for_end_of(job)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_on_all_hosts(ssh_hosts: SshHosts, number: int) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:1", *FLAGS, *WORKER, environment=NEW_WORKERS_FROM_3
    ) as job:
        read_start(job, 2)
        kill(job.process.pid, number)
        assert job.end() == 128 + number
        ssh_hosts.wait_for_end_of(job)
    assert "is gone" not in job.errors
