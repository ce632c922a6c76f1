"""Functions and scripts that a program runs as jobs over several hosts."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import WAITING_NOTICES, SshHosts, make_ssh_hosts
from launched import CommandRun
from test_driver import files_with, processes_with

# The program runs on host0. The job has two workers on host0, without ssh, and two on host1. The
# settings suppress the launcher's notices about threads and about late ranks.
WITHOUT_NOTICES = {"OMP_NUM_THREADS": "1", "FARANDOLE_STALL_WARNING": "0"}
PROGRAM_BEGINNING = """
import os, re, signal, sys, time
import farandole
HOSTS, KEY, *REST = sys.argv[1:]
PLACES = {"hosts": HOSTS, "ssh_identity_file": KEY}
def rank(): return int(os.environ["FARANDOLE_RANK"])
"""


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(2, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def start(
    ssh_hosts: SshHosts, program: str, *arguments: str, hosts: str = "own:2,host1:2"
) -> CommandRun:
    host_list = hosts.replace("own", ssh_hosts.hosts[0].v4)
    words = (
        sys.executable,
        "-c",
        PROGRAM_BEGINNING + program,
        host_list,
        str(ssh_hosts.servers.identity),
    )
    executable, *other_words = ssh_hosts.hosts[0].command(*words, *arguments)
    return CommandRun(*other_words, program=executable, environment=WITHOUT_NOTICES)


def run(
    ssh_hosts: SshHosts, program: str, *arguments: str, hosts: str = "own:2,host1:2"
) -> CommandRun:
    """Run the program to its end, and check that no process is left on any host."""
    with start(ssh_hosts, program, *arguments, hosts=hosts) as caller:
        caller.end()
        ssh_hosts.wait_for_end_of(caller)
    assert caller.process.returncode == 0, caller.output + caller.errors
    return caller


RESULTS_PROGRAM = """
def work(first, *, more):
    import torch
    import farandole.torch as hvd
    hvd.init()
    print("é from", hvd.rank())
    total = hvd.allreduce(torch.full((1000,), first + more * hvd.rank()), op=hvd.Sum)
    return hvd.rank(), float(total[0])
print(farandole.run(work, (1.0,), {"more": 10.0}, **PLACES))
"""


@pytest.mark.parametrize("hosts", ["own:2,host1:2", "host1:1,host0:3"])
def test_results_are_ordered_by_rank(ssh_hosts: SshHosts, hosts: str) -> None:
    caller = run(ssh_hosts, RESULTS_PROGRAM, hosts=hosts)
    expected_lines = [f"[{rank}] é from {rank}" for rank in range(4)]
    assert sorted(caller.output.splitlines()) == [
        "[(0, 64.0), (1, 64.0), (2, 64.0), (3, 64.0)]",
        *expected_lines,
    ]
    errors = caller.errors.splitlines()
    assert [line for line in errors if not line.startswith(WAITING_NOTICES)] == []


RAISING_PROGRAM = """
late = [int(word) for word in REST]
def work():
    import atexit
    from farandole import calls
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # 10 s instead of 5 s to end by itself
    farandole.init()
    if farandole.rank() in late:
        atexit.register(time.sleep, 1)  # this process ends a second after it has left the job
    if farandole.rank() == 3:
        raise ValueError("no data")
    calls.barrier()
try:
    farandole.run(work, **PLACES)
except farandole.WorkerError as error:
    print(error.rank, error.exit_code, error.exception_type, error.exception_text)
    print(re.sub("pid [0-9]+", "pid", str(error)))
"""


# The late processes end after the others, so the launchers see the ends of the ranks in another
# order.
@pytest.mark.parametrize("late_ranks", ["", "3", "2 3"])
def test_an_exception_on_another_host_arrives(ssh_hosts: SshHosts, late_ranks: str) -> None:
    caller = run(ssh_hosts, RAISING_PROGRAM, *late_ranks.split())
    assert caller.output.startswith(
        "3 1 ValueError no data\nrank 3 (pid) raised ValueError: no data\n\nTraceback"
    )
    assert 'File "<string>", line 17, in work\nValueError: no data\n' in caller.output
    assert "function_worker" not in caller.output
    shown = re.search(
        r"^│ rank 3 \(host1, pid \d+\) raised ValueError: no data", caller.errors, re.M
    )
    assert shown, caller.errors


KILLED_PROGRAM = """
def work():
    if rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    farandole.run(work, **PLACES)
except farandole.WorkerError as error:
    print(error.rank, error.exit_code, re.sub("pid [0-9]+", "pid", str(error)))
"""


def test_a_killed_worker_on_another_host(ssh_hosts: SshHosts) -> None:
    assert run(ssh_hosts, KILLED_PROGRAM).output == (
        "2 137 rank 2 (pid) was killed by signal 9 (SIGKILL) before its function had returned\n"
    )


UNPICKLABLE_PROGRAM = """
try:
    farandole.run(lambda: (i for i in ()) if rank() == 3 else 1, **PLACES)
except farandole.WorkerError as error:
    print(error.exception_text)
"""


def test_a_result_that_cannot_be_pickled_is_named(ssh_hosts: SshHosts) -> None:
    assert run(ssh_hosts, UNPICKLABLE_PROGRAM).output == (
        "the result of rank 3, of the type generator, cannot be pickled: TypeError: cannot pickle "
        "'generator' object\n"
    )


LARGE_DATA_PROGRAM = """
import numpy as np
def work(given):
    print("x" * 200_000)
    assert (given == np.arange(6_250_000)).all()
    return given + rank()
results = farandole.run(work, (np.arange(6_250_000),), prefix="", **PLACES)
print(all((result == np.arange(6_250_000) + r).all() for r, result in enumerate(results)))
"""


def test_large_functions_and_results_arrive(ssh_hosts: SshHosts) -> None:
    caller = run(ssh_hosts, LARGE_DATA_PROGRAM)  # 50 MB to and from each rank
    assert caller.output.splitlines()[-1] == "True"
    assert caller.output.count("x") >= 4 * (1 << 16)  # the launchers cut long lines


LAUNCHING_PROGRAM = """
def work(text, folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # 10 s instead of 5 s to end by itself
    print(text, rank())
    print("beside", file=sys.stderr)
    if rank() == 3:
        while len(os.listdir(folder)) < 3:  # the others have only to end
            time.sleep(0.01)
        raise KeyError(text)
    open(f"{folder}/{rank()}", "w").close()
    return text, os.environ["GIVEN"], os.environ["HOME"]
workers = farandole.launch_workers(None, work, ("hello", *REST), env={"GIVEN": "yes", "HOME": "/h"},
                                   **PLACES)
*results, failure = farandole.await_workers(workers)
print(results == [("hello", "yes", "/h")] * 3, failure.exception_type)
print([worker.state for worker in workers], [worker.exit_code for worker in workers])
print([worker.address for worker in workers])
print([worker.stdout for worker in workers], workers[2].output.splitlines())
print(workers[3].stderr.endswith("KeyError: 'hello'\\\\n"), "raised KeyError" in workers.messages)
print(re.sub("[0-9]{2,}", "PID", repr(workers)))
"""


def test_workers_are_launched_and_awaited(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    own_address = ssh_hosts.hosts[0].v4
    program = LAUNCHING_PROGRAM.replace("\\\\", "\\")
    lines = run(ssh_hosts, program, str(tmp_path)).output.splitlines()
    assert lines[:5] == [
        "True KeyError",
        "['done', 'done', 'done', 'failed'] [0, 0, 0, 1]",
        f"['{own_address}', '{own_address}', 'host1', 'host1']",
        "['hello 0\\n', 'hello 1\\n', 'hello 2\\n', 'hello 3\\n'] ['hello 2', 'beside']",
        "True True",
    ]
    assert lines[5].startswith("4 workers on ") and ", host1, launcher PID" in lines[5]
    assert re.fullmatch("rank  host +pid  state     exit code", lines[6])
    assert re.fullmatch(r"   3  host1 +PID  failed    1", lines[10])


STOPPING_PROGRAM = """
ignore = 'trap "" TERM; ' if REST else ""
script = ignore + "echo $FARANDOLE_RANK; while :; do sleep 1; done"
workers = farandole.launch_workers(target=["sh", "-c", script], **PLACES)
while not all(worker.stdout for worker in workers):
    farandole.await_workers(workers, timeout=0.01)
outcomes = farandole.await_workers(workers, timeout=0.01)
print({type(outcome).__name__ for outcome in outcomes}, {worker.state for worker in workers})
farandole.stop_workers(workers, grace_time=1 if REST else 30)
print([worker.stdout for worker in workers])
print({worker.state for worker in workers}, [worker.exit_code for worker in workers])
"""


@pytest.mark.parametrize("ignores_sigterm", [False, True])
def test_workers_are_stopped(ssh_hosts: SshHosts, ignores_sigterm: bool) -> None:
    caller = run(ssh_hosts, STOPPING_PROGRAM, *(["stubborn"] if ignores_sigterm else []))
    assert caller.output.splitlines() == [
        "{'TimeoutError'} {'running'}",
        "['0\\n', '1\\n', '2\\n', '3\\n']",
        f"{{'stopped'}} {[137 if ignores_sigterm else 143] * 4}",
    ]


WAITING_PROGRAM = """
def work():
    print("working", flush=True)
    while True:
        signal.pause()
if REST == ["run"]:
    farandole.run(work, **PLACES)
workers = farandole.launch_workers(4, work, **PLACES)
while not all("working" in worker.stdout for worker in workers):
    farandole.await_workers(workers, timeout=0.01)
print("working\\n" * 4, flush=True)
farandole.await_workers(workers)
"""


@pytest.mark.parametrize("action", ["run", "launch"])
def test_nothing_outlives_a_caller_that_is_killed(ssh_hosts: SshHosts, action: str) -> None:
    with start(ssh_hosts, WAITING_PROGRAM, action) as caller:
        caller.read_until("working", times=4)
        assert len(ssh_hosts.agents(1)) == 1
        caller.send(signal.SIGKILL)
        ssh_hosts.wait_for_end_of(caller)


def test_ctrl_c_ends_the_workers(ssh_hosts: SshHosts) -> None:
    with start(ssh_hosts, WAITING_PROGRAM, "run") as caller:
        caller.read_until("working", times=4)
        caller.send(signal.SIGINT)
        assert caller.end() == -signal.SIGINT
        ssh_hosts.wait_for_end_of(caller)
    assert caller.errors.splitlines()[-1] == "KeyboardInterrupt"
    # A node may learn that the job ends before this node gets the signal.
    assert re.search("the job has ended after SIGINT|SIGINT has ended it", caller.errors)


LOSING_PROGRAM = """
def work():
    print("working", flush=True)
    signal.pause()
workers = farandole.launch_workers(4, work, **PLACES)
while not all("working" in worker.stdout for worker in workers):
    farandole.await_workers(workers, timeout=0.01)
print("started", flush=True)
for outcome in farandole.await_workers(workers):
    print(type(outcome).__name__)
"""


@pytest.mark.parametrize("victim", ["driver", "ssh", "relay", "launcher"])
def test_a_killed_process_on_the_way_ends_the_job(ssh_hosts: SshHosts, victim: str) -> None:
    with start(ssh_hosts, LOSING_PROGRAM) as caller:
        caller.read_until("started")
        drivers = ssh_hosts.find(0, "farandole run", "--caller")
        relays = ssh_hosts.foreground_processes(1)
        victims = {
            "driver": drivers,
            "ssh": ssh_hosts.find(0, "host1", "agent", parents=drivers),
            "relay": relays,
            "launcher": ssh_hosts.find(1, "/farandole agent", parents=relays),
        }
        (pid,) = victims[victim]
        os.kill(pid, signal.SIGKILL)
        assert caller.end() == 0, caller.errors
        ssh_hosts.wait_for_end_of(caller)
    assert caller.output.splitlines() == ["started"] + ["WorkerError"] * 4


SECRET_PROGRAM = """
def work(secret):
    print("working", flush=True)
    signal.pause()
secret = sys.stdin.readline().strip()
farandole.run(work, (secret,), **PLACES)
"""


def test_a_function_is_in_no_list_environment_or_file(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    changed_since = time.time() - 2  # the file system may store times in whole seconds
    canary = secrets.token_hex(16)
    secret_line = f"secret = {canary[:16]!r} + {canary[16:]!r}"
    program = SECRET_PROGRAM.replace("secret = sys.stdin.readline().strip()", secret_line)
    with start(ssh_hosts, program) as caller:
        caller.read_until("working", times=4)
        pid_lists = processes_with(canary)
        files = files_with(canary, changed_since, ssh_hosts.servers.folder, Path("/tmp"), tmp_path)
        caller.send(signal.SIGINT)
        caller.end()
        ssh_hosts.wait_for_end_of(caller)
    assert (pid_lists, files) == (([], []), [])


MODULE_PROGRAM = """
import beside
print(farandole.run(beside.work, hostfile=REST[0], ssh_identity_file=KEY, n=3, prefix="x"))
"""


def test_a_module_beside_the_program_is_found(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    (folder := tmp_path / "modules").mkdir()
    (folder / "beside.py").write_text("import os\ndef work(): return int(os.environ['RANK'])\n")
    (hostfile := tmp_path / "hosts").write_text("host1 slots=2\nhost0 slots=2\n")
    program = f"sys.path.append({str(folder)!r})" + MODULE_PROGRAM
    assert run(ssh_hosts, program, str(hostfile)).output == "[0, 1, 2]\n"


WRONG_HOSTS_PROGRAM = """
for given in ({"hosts": "a:b"}, {"hosts": "host0:1", "n": 2}, {"hosts": 2}, {"ssh_port": 22},
              {"hosts": "host1", "ssh_port": 0}, {"hosts": "host1", "env": {"RANK": "1"}},
              {"hosts": "no-such-host"}):
    try:
        farandole.run(rank, **given)
    except farandole.FarandoleError as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


def test_wrong_hosts_are_errors(ssh_hosts: SshHosts) -> None:
    lines = run(ssh_hosts, WRONG_HOSTS_PROGRAM).output.splitlines()
    message_start = "CallError no worker could be started: farandole run: "
    expected = [
        message_start + '-H, entry 1: "a:b"',
        message_start + "-n is 2, but the hosts have only 1 slot",
        "CallError hosts must be a string such as 'host1:4,host2:4'; got 2",
        "CallError ssh_port is given, but no hosts; give hosts or hostfile, too",
        message_start + '--ssh-port is "0"',
        message_start + '-x "RANK": the launcher sets RANK',
        "FarandoleError no worker could be started: farandole: cannot start the job on no-such-",
    ]
    assert len(lines) == len(expected), lines
    for line, part in zip(lines, expected, strict=True):
        assert line.startswith(part), "\n".join(lines)


HOROVOD_PROGRAM = """
import horovod
def work():
    import horovod.torch as hvd
    hvd.init()
    return hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_rank()
print(horovod.run(work, np=4, hosts=HOSTS, ssh_identity_file=KEY))
"""


def test_horovod_run_uses_the_hosts(ssh_hosts: SshHosts) -> None:
    expected = [(0, 4, 2, 0), (1, 4, 2, 0), (2, 4, 2, 1), (3, 4, 2, 1)]
    assert run(ssh_hosts, HOROVOD_PROGRAM).output == f"{expected}\n"
