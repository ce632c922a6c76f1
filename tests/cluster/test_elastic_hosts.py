"""Elastic jobs over several hosts: workers, launchers and hosts are lost, and hosts come back."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import SshHosts, kill, make_ssh_hosts
from launched import TIMEOUT_SECONDS, CommandRun, run
from test_elastic import environment_of, new_workers, pids_of_finished_workers
from test_hosts import Job
from test_stalls import read_errors_until

WORKER = (sys.executable, "tests/cluster/elastic_worker.py")
FLAGS = ("--min-workers", "1", "--cooldown-range", "0,1")


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def worker_of(ssh_hosts: SshHosts, node: int, number: int) -> int:
    """Return the process id of the worker with this number on a host."""
    expected = f"FARANDOLE_ELASTIC_WORKER={number}\0"
    return next(pid for pid in ssh_hosts.processes(node) if expected in environment_of(pid))


def ssh_of(ssh_hosts: SshHosts, job: CommandRun, node: int) -> int:
    """Return the process id of the driver's ssh process for a host."""
    pids = ssh_hosts.find(0, "ssh -T", f"host{node}", parents=[job.process.pid])
    assert len(pids) == 1
    return pids[0]


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_start(job: CommandRun, workers: int) -> None:
    for worker in range(workers):
        job.read_until(f"worker {worker} has rank {worker} of {workers} at batch 0")


@pytest.mark.parametrize("lost_worker", [0, 1, 2])
def test_a_killed_worker_is_replaced_on_its_host(
    ssh_hosts: SshHosts, lost_worker: int, tmp_path: Path
) -> None:
    environment = new_workers(3, go_file := tmp_path / "go")
    with ssh_hosts.start("-H", "host0:2,host1:1", *FLAGS, *WORKER, environment=environment) as job:
        read_start(job, 3)
        kill(worker_of(ssh_hosts, lost_worker // 2, lost_worker))
        job.read_until("of 2 at batch", times=2)
        go_file.touch()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) == {0, 1, 2, 3} - {lost_worker}, job.errors
    assert f"worker {lost_worker} (pid " in job.errors
    assert "the job goes on with 2 workers" in job.errors
    assert re.search(r"worker 3 has rank [12] of 3 at batch [1-9]", job.output)


@pytest.mark.parametrize("victim", ["launcher", "ssh"])
def test_a_lost_node_comes_back(ssh_hosts: SshHosts, victim: str, tmp_path: Path) -> None:
    environment = new_workers(3, go_file := tmp_path / "go")
    with ssh_hosts.start("-H", "host0:1,host1:2", *FLAGS, *WORKER, environment=environment) as job:
        read_start(job, 3)
        kill(ssh_hosts.agents(1)[0] if victim == "launcher" else ssh_of(ssh_hosts, job, 1))
        job.read_until("of 1 at batch")
        go_file.touch()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) >= {0, 3}, job.errors
    assert not {1, 2} & set(pids_of_finished_workers(job))
    assert "node 2 (host1) is gone" in job.errors
    assert "the job goes on with 1 worker\n" in job.errors
    assert "farandole agent:" not in job.output
    assert re.search(r"worker [34] has rank [12] of [23] at batch [1-9]", job.output)


@pytest.mark.parametrize("frozen", ["host", "launcher"])
def test_a_host_that_is_frozen_does_not_stop_the_others(
    ssh_hosts: SshHosts, frozen: str, tmp_path: Path
) -> None:
    """The test stops all processes of a host, or of its launcher, as in a frozen container. Their
    connections stay open, because the kernel still answers."""
    environment = new_workers(2, go_file := tmp_path / "go")
    with ssh_hosts.start("-H", "host0:1,host1:1", *FLAGS, *WORKER, environment=environment) as job:
        read_start(job, 2)
        worker = worker_of(ssh_hosts, 1, 1)
        processes = set(ssh_hosts.processes(1)) if frozen == "host" else set(ssh_hosts.agents(1))
        for pid in processes:
            kill(pid, signal.SIGSTOP)
        if frozen == "launcher":
            kill(worker)  # its stopped launcher cannot report this death
        try:
            job.read_until("has rank 0 of 1")
            go_file.touch()
            job.read_until("worker 2 has rank 1 of 2")
        finally:
            for pid in processes:
                kill(pid, signal.SIGCONT)
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) == {0, 2}, job.errors
    assert not os.path.exists(f"/proc/{worker}")
    assert "node 2 (host1) is gone: it has said nothing for 10 s" in job.errors


@pytest.mark.parametrize(
    ("hosts", "lost_worker"),
    [
        ("host0,host1,host2", 1),
        pytest.param("host1,host2", 0, marks=pytest.mark.long),
    ],
)
def test_a_host_that_is_cut_off_comes_back_pytorch_111646(
    ssh_hosts: SshHosts, hosts: str, lost_worker: int
) -> None:
    """The bug report: a node sent no keep-alive messages any more. But torchrun did not restart the
    training, so the other nodes waited for this node. Here, the other hosts go on without the lost
    host, which may come back. test_known_bugs.py has more tests of reported bugs."""
    size = len(hosts.split(","))
    environment = new_workers(size)
    with ssh_hosts.start("-H", hosts, *FLAGS, *WORKER, environment=environment) as job:
        read_start(job, size)
        worker = worker_of(ssh_hosts, 1, lost_worker)
        ssh_hosts.hosts[1].unplug()
        try:
            job.read_until(f"has rank 0 of {size - 1}")
            wait_until_ended(worker)
        finally:
            ssh_hosts.hosts[1].plug()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) == {*range(size), size} - {lost_worker}, job.errors
    assert f"node {lost_worker + 1} (host1) is gone" in job.errors


def first_launcher(ssh_hosts: SshHosts, victim: str) -> int:
    """Return the foreground process, or the agent, of the launcher that has no workers."""
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while time.monotonic() < deadline:
        for foreground in ssh_hosts.foreground_processes(0):
            agents = ssh_hosts.find(0, "/farandole agent", parents=[foreground])
            if agents and not ssh_hosts.find(0, parents=agents):
                return foreground if victim == "foreground" else agents[0]
        time.sleep(0.02)
    raise TimeoutError("every launcher has workers")


@pytest.mark.parametrize("victim", ["agent", "foreground"])
def test_the_launcher_that_decides_is_replaced(ssh_hosts: SshHosts, victim: str) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:2", *FLAGS, *WORKER, environment=new_workers(3)
    ) as job:
        read_start(job, 3)
        kill(first_launcher(ssh_hosts, victim))
        job.read_until("of 3 at batch", times=6)
        kill(first_launcher(ssh_hosts, victim))
        job.read_until("of 3 at batch", times=9)
        kill(worker_of(ssh_hosts, 1, 2))
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert job.errors.count("starting another one") == 2
    assert len(pids_of_finished_workers(job)) == 3 and {0, 1} < set(
        pids_of_finished_workers(job)
    ), job.output
    assert "farandole agent:" not in job.output


def test_a_replacement_that_is_lost_at_once_is_replaced(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:2", *FLAGS, *WORKER, environment=new_workers(3)
    ) as job:
        read_start(job, 3)
        processes_before = {*ssh_hosts.processes(0)}
        kill(first_launcher(ssh_hosts, "foreground"))
        deadline = time.monotonic() + TIMEOUT_SECONDS / 2
        while not (replacements := {*ssh_hosts.foreground_processes(0)} - processes_before):
            assert time.monotonic() < deadline, job.errors
        kill(replacements.pop())  # the replacement has not joined the job yet
        kill(worker_of(ssh_hosts, 1, 2))
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert job.errors.count("starting another one") == 2, job.errors
    assert len(pids_of_finished_workers(job)) == 3, job.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_on_all_hosts(ssh_hosts: SshHosts, number: int) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:1", *FLAGS, *WORKER, environment=new_workers(3)
    ) as job:
        read_start(job, 2)
        kill(job.process.pid, number)
        assert job.end() == 128 + number
        ssh_hosts.wait_for_end_of(job)
    assert "is gone" not in job.errors


class HostList:
    """The hosts that a job may use, as its discovery command finds them."""

    def __init__(self, folder: Path) -> None:
        self.path, self.stop_file, self.count = folder / "hosts", folder / "stop", folder / "count"

    def set(self, *hosts: str) -> None:
        # Replace the file in one step, so that the command never reads half of a list.
        (new := self.path.with_suffix(".new")).write_text("".join(f"{host}\n" for host in hosts))
        new.rename(self.path)

    def set_and_wait(self, *hosts: str) -> None:
        """Set the list, and wait until the driver has used it."""
        self.set(*hosts)
        count_before = self.count.read_text().count(".")
        deadline = time.monotonic() + TIMEOUT_SECONDS / 2
        while self.count.read_text().count(".") < count_before + 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def flags(self, max_workers: int) -> list[str]:
        command = f"cat {self.path}; printf . >> {self.count}"
        return [*FLAGS, "--max-workers", str(max_workers), "--host-discovery-script", command]

    def environment(self) -> dict[str, str]:
        return {"HOLD_UNTIL": str(self.stop_file)}


@pytest.fixture
def host_list(tmp_path: Path) -> HostList:
    return HostList(tmp_path)


def test_hosts_that_are_listed_join_and_others_leave(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1")
    with ssh_hosts.start(*host_list.flags(4), *WORKER, environment=host_list.environment()) as job:
        job.read_until("worker 0 has rank 0 of 1")
        host_list.set("host0:1", "host1:2", "host2:1")
        job.read_until("of 4 at batch", times=4)
        ssh = ssh_of(ssh_hosts, job, 1)
        host_list.set("host0:1", "host2:1")
        read_errors_until(job, "node 2 has left")
        wait_until_ended(ssh)
        host_list.set("host0:1", "host2:1", "host1:2")
        job.read_until("of 4 at batch", times=8)
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) == {0, 3, 4, 5}, job.output + job.errors
    for text in ("node 2 takes part", "node 3 takes part", "node 2 has left", "is listed again"):
        assert text in job.errors, job.errors
    assert "killed" not in job.errors


def test_a_host_that_must_leave_twice_stays_as_long_as_it_is_needed(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1", "host1:1")
    flags = [*host_list.flags(2), "--min-workers", "2"]
    with ssh_hosts.start(*flags, *WORKER, environment=host_list.environment()) as job:
        read_start(job, 2)
        host_list.set_and_wait("host0:1")  # the job needs two workers
        host_list.set_and_wait("host0:1", "host1:1")
        host_list.set_and_wait("host0:1")
        worker_of(ssh_hosts, 1, 1)  # the launcher still runs
        host_list.set("host0:1", "host2:1")
        read_errors_until(job, "node 2 has left")
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
        ssh_hosts.wait_for_end_of(job)
    assert set(pids_of_finished_workers(job)) == {0, 2}, job.output + job.errors


def test_there_are_never_more_workers_than_allowed(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1", "host1:2")
    with ssh_hosts.start(*host_list.flags(4), *WORKER, environment=host_list.environment()) as job:
        read_start(job, 3)
        host_list.set("host0:1", "host1:2", "host2:5")
        job.read_until("of 4 at batch", times=4)
        kill(worker_of(ssh_hosts, 1, 1))
        job.read_until("of 4 at batch", times=8)
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
    assert max(map(int, re.findall(r"of (\d+) at batch", job.output))) == 4


def test_a_host_that_cannot_be_reached_stops_nobody(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1")
    with ssh_hosts.start(*host_list.flags(4), *WORKER, environment=host_list.environment()) as job:
        job.read_until("worker 0 has rank 0 of 1")
        host_list.set("host0:1", "no-such-host:1", "host1:2")
        job.read_until("of 3 at batch", times=3)
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
    assert "no-such-host: " in job.errors


def test_a_list_that_cannot_be_read_changes_nothing(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1", "host1:1")
    with ssh_hosts.start(*host_list.flags(4), *WORKER, environment=host_list.environment()) as job:
        read_start(job, 2)
        host_list.set("host0:many")
        read_errors_until(job, "the hosts stay as they are")
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
    assert set(pids_of_finished_workers(job)) == {0, 1}
    assert "line 1" in job.errors


def test_nodes_that_users_start_leave_and_come_back(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    assert run("secret", str(secret)).process.returncode == 0
    stop_file = tmp_path / "stop"
    script = f"HOLD_UNTIL={stop_file} exec {' '.join(WORKER)}"
    job = Job(ssh_hosts.hosts, secret)
    try:
        node_0 = job.start(0, script, *FLAGS)
        node_1 = job.start(1, script, *FLAGS, workers=2)
        node_1.read_until("worker 2 has rank 2 of 3")
        # `ip netns exec` replaces itself by the launcher, so this is the pid of the launcher.
        kill(node_1.process.pid, signal.SIGTERM)
        node_1.end()
        assert "this node leaves the job at its next commit" in node_1.errors
        node_0.read_until("worker 0 has rank 0 of 1")
        other_size = job.start(1, script, *FLAGS, workers=1)
        assert other_size.end() == 2
        assert re.search(r"node 1 \(\S+\) had 2 workers, so it can come back", other_size.errors)
        restarted = job.start(1, script, *FLAGS, workers=2)
        restarted.read_until("of 3 at batch", times=2)
        stop_file.touch()
        assert node_0.end() == restarted.end() == 0
    finally:
        job.close()
    assert "node 1 leaves at the next commit" in node_0.errors
    assert "node 1 has left" in node_0.errors
    assert "node 1 takes part again" in node_0.errors
    assert set(pids_of_finished_workers(node_0)) == {0} and set(
        pids_of_finished_workers(restarted)
    ) == {3, 4}


def test_a_host_that_is_being_started_at_the_end_changes_nothing(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    host_list.set("host0:1")
    with ssh_hosts.start(*host_list.flags(4), *WORKER, environment=host_list.environment()) as job:
        job.read_until("worker 0 has rank 0 of 1")
        ssh_hosts.hosts[2].unplug()  # so ssh waits
        try:
            host_list.set("host0:1", "host2:1")
            while not ssh_hosts.find(0, "ssh -T", "host2", parents=[job.process.pid]):
                time.sleep(0.05)
            host_list.stop_file.touch()
            assert job.end() == 0, job.errors
        finally:
            ssh_hosts.hosts[2].plug()
    assert "cannot start the job" not in job.errors


def test_others_finish_while_a_node_has_failed(ssh_hosts: SshHosts) -> None:
    program = (
        "import os, sys, time, farandole; farandole.init(); rank = farandole.rank(); "
        "farandole.calls.barrier(); farandole.shutdown(); "
        "time.sleep(4 * (rank == 1)); print('saved', rank, flush=True); sys.exit(3 * (rank == 2))"
    )
    job = ssh_hosts.run(
        "-H", "host0:1,host1:1,host2:1", "--min-workers", "1", sys.executable, "-c", program
    )
    assert job.process.returncode == 3
    assert "saved 1" in job.output, job.errors


def test_a_node_whose_launcher_gets_sigterm_does_not_come_back(
    ssh_hosts: SshHosts, host_list: HostList
) -> None:
    with ssh_hosts.start(
        "-H", "host0:1,host1:1", *FLAGS, *WORKER, environment=host_list.environment()
    ) as job:
        read_start(job, 2)
        kill(ssh_hosts.foreground_processes(1)[0], signal.SIGTERM)
        read_errors_until(job, "node 2 has left")
        time.sleep(2)  # the pause before a lost host is started again is 1 s
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
    assert set(pids_of_finished_workers(job)) == {0}
    assert "again" not in job.errors


GROWING_PROGRAM = """
import torch, farandole.torch as hvd
hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
state = hvd.elastic.TorchState(model, optimizer, batch=0)
@hvd.elastic.run
def train(state):
    print(f"size {hvd.size()} at batch {state.batch}", flush=True)
    while state.batch < 40:
        if state.batch == 20 and hvd.size() == 1:
            print("alone at batch 20", flush=True)
        while state.batch >= 20 and hvd.size() == 1:
            state.commit()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.batch += hvd.size()
        state.commit()
train(state)
assert model.weight.item() == -state.batch, (model.weight, state.batch)
"""


def test_the_optimizer_of_a_worker_that_began_alone_combines_gradients(host_list: HostList) -> None:
    host_list.set("127.0.0.1:1")
    with CommandRun("run", *host_list.flags(2), sys.executable, "-c", GROWING_PROGRAM) as job:
        job.read_until("alone at batch 20")
        host_list.set("127.0.0.1:1", "127.0.0.2:1")
        assert job.end() == 0, job.output + job.errors
    assert job.output.count("size 2 at batch 20") == 2


def test_an_unreachable_host_does_not_keep_others_from_coming_back(host_list: HostList) -> None:
    host_list.set("127.0.0.1:1", "127.0.0.2:1")
    with CommandRun(
        "run", "-n", "2", *host_list.flags(2), *WORKER, environment=host_list.environment()
    ) as job:
        read_start(job, 2)
        host_list.set("127.0.0.1:1", "127.0.0.2:1", "no-such-host:1")
        read_errors_until(job, "no-such-host: ")
        host_list.set("127.0.0.1:1", "no-such-host:1")
        read_errors_until(job, "node 2 has left")
        host_list.set("127.0.0.1:1", "127.0.0.2:1", "no-such-host:1")
        job.read_until("of 2 at batch", times=4)
        host_list.stop_file.touch()
        assert job.end() == 0, job.errors
    assert "another job" not in job.errors
