"""How jobs over several hosts end that `farandole run -H` has started: failures, signals and
kills."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driven import SshHosts, kill, make_ssh_hosts, parent_of
from launched import TIMEOUT_SECONDS, CommandRun, command
from test_stalls import read_errors_until

from ssh_servers import make_key

WAIT_SCRIPT = "echo waits as $$; exec sleep 1000"
# The driver ignores a second signal that arrives together with the first.
SECONDS_BETWEEN_SIGNALS = 0.7
SLEEP_WORDS = ["sleep", "1000"]  # the command line of a worker with WAIT_SCRIPT
POLL_SECONDS = 0.02
PROCESS_KINDS = ["driver", "ssh", "foreground", "agent", "sshd", "worker"]


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def count_boxes(job: CommandRun) -> int:
    return job.errors.count("─ farandole: the job has failed ─")


def waiting_workers(job: CommandRun, count: int) -> list[int]:
    """Wait until `count` workers have started; return their process ids."""
    job.read_until("waits as", times=count)
    return [int(pid) for pid in re.findall(r"waits as (\d+)", job.output)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


@pytest.mark.parametrize("hosts", ["host0,host1,host2", "host1,own,host2"])
@pytest.mark.parametrize("failing_rank", [0, 1, 2])
def test_a_failing_worker_is_named_in_one_box(
    ssh_hosts: SshHosts, hosts: str, failing_rank: int
) -> None:
    hosts = hosts.replace("own", ssh_hosts.hosts[0].v4)
    job = ssh_hosts.run(
        "-H", hosts, "sh", "-c", f"test $RANK != {failing_rank} || exit 7; sleep 1000"
    )
    assert job.process.returncode == 7
    assert count_boxes(job) == 1
    host = hosts.split(",")[failing_rank]
    assert re.search(
        rf"│ rank {failing_rank} \({host}, pid \d+\) exited with code 7 +│", job.errors
    )
    assert "─ exit code 7 ─" in job.errors


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_worker_that_fails_after_the_others_have_succeeded(
    ssh_hosts: SshHosts, failing_rank: int
) -> None:
    job = ssh_hosts.run("-H", "host0,host1", "sh", "-c", f"test $RANK != {failing_rank} || exit 7")
    assert job.process.returncode == 7
    assert count_boxes(job) == 1


def test_exit_code_255_is_not_mistaken_for_a_lost_connection(ssh_hosts: SshHosts) -> None:
    job = ssh_hosts.run("-H", "host0,host1", "sh", "-c", "test $RANK != 0 || exit 255")
    assert job.process.returncode == 255
    assert count_boxes(job) == 1
    assert "the connection has ended" not in job.errors


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_killed_worker_is_named(ssh_hosts: SshHosts, failing_rank: int) -> None:
    with ssh_hosts.start("-H", "host0,host1", "sh", "-c", f"echo $RANK; {WAIT_SCRIPT}") as job:
        waiting_workers(job, 2)
        kill(int(re.findall(rf"\[{failing_rank}\] waits as (\d+)", job.output)[0]))
        assert job.end() == 128 + signal.SIGKILL
        ssh_hosts.wait_for_end_of(job)
    assert count_boxes(job) == 1
    assert re.search(rf"rank {failing_rank} \(host{failing_rank}, pid \d+\) was killed", job.errors)


@pytest.mark.parametrize("hosts", ["host0,host1", "host1", "host1,host2"])
def test_a_program_that_does_not_exist_is_reported(ssh_hosts: SshHosts, hosts: str) -> None:
    job = ssh_hosts.run("-H", hosts, "no-such-program")
    assert job.process.returncode == 127
    assert job.errors.count("command not found: `no-such-program`") == 1
    assert (
        f"cannot start the job on {hosts.split(',', maxsplit=1)[0]}: the launcher has exited"
        in job.errors
    )
    assert job.output == ""


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_program_that_is_missing_on_one_host_is_reported(
    ssh_hosts: SshHosts, node: int, tmp_path: Path
) -> None:
    (program := tmp_path / "bin/program").parent.mkdir()
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o755)
    with ssh_hosts.hide_folder(node, program.parent):
        job = ssh_hosts.run("-H", "host0,host1,host2", str(program))
    assert job.process.returncode == 127
    assert f"command not found: `{program}`" in job.errors
    assert f"cannot start the job on host{node}: the launcher has exited with code 127" in (
        job.errors
    )
    assert job.output == ""


@pytest.mark.parametrize("node", [0, 1])
def test_a_working_directory_that_is_missing_on_one_host_is_reported(
    ssh_hosts: SshHosts, node: int, tmp_path: Path
) -> None:
    (folder := tmp_path / "work/here").mkdir(parents=True)
    hosts = "host0,host1" if node else "host1,host0"  # so host1 is this node
    with ssh_hosts.hide_folder(1, folder.parent):
        job = ssh_hosts.run("-H", hosts, "pwd", folder=folder)
    assert job.process.returncode == 2
    assert f"the working directory {folder} cannot be used on this host: No such file" in job.errors
    assert "cannot start the job on host1: the launcher has exited with code 2" in job.errors
    assert job.output == ""


def test_a_port_range_that_is_too_small_is_reported(ssh_hosts: SshHosts) -> None:
    program = (sys.executable, "-c", "import farandole; farandole.init(); print('joined')")
    job = ssh_hosts.run("-H", "host0:1,host1:1", "--ports", "20000", *program)
    assert job.process.returncode == 2
    assert (
        "has 1 of the 2 ports that the launcher and the workers of this host need; give a range "
        "such as 20000-20001"
    ) in job.errors
    job = ssh_hosts.run("-H", "host0:1,host1:1", "--ports", "20000-20001", *program)
    assert job.process.returncode == 0, job.errors
    assert job.output.count("joined") == 2


@pytest.mark.parametrize("hosts", ["host1,host2", "host2,host1"])
def test_another_version_is_rejected(ssh_hosts: SshHosts, hosts: str, tmp_path: Path) -> None:
    other_program = tmp_path / "other"
    other_program.write_text("#!/bin/sh\necho farandole agent 0.0.1\nexec cat >&2\n")
    other_program.chmod(0o755)
    with ssh_hosts.replace_file(1, Path(command()).resolve(), other_program):
        job = ssh_hosts.run("-H", hosts, "sh", "-c", "echo here")
    assert job.process.returncode == 1
    lines = job.errors.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        'farandole: cannot start the job on host1: its version is "0.0.1", but here it is '
    )
    assert job.output == ""


def test_a_host_without_farandole_is_reported(ssh_hosts: SshHosts) -> None:
    path = Path(command()).resolve()
    with ssh_hosts.hide_folder(1, path.parent):
        job = ssh_hosts.run("-H", "host0,host1", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    assert re.search(
        rf"cannot start the job on host1: .*{path}: No such file.*; install Farandole on that host",
        job.errors,
    )


# Errors of ssh.


def test_all_hosts_that_fail_are_named(ssh_hosts: SshHosts) -> None:
    job = ssh_hosts.run("-H", "host0,nowhere,host1,elsewhere:2", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    for name in ("nowhere", "elsewhere"):
        assert job.errors.count(f"cannot start the job on {name}: ssh: Could not resolve") == 1
    assert job.errors.count("cannot start the job on") == 2
    assert len(job.errors.splitlines()) == 2
    assert job.output == ""


def test_a_wrong_ssh_port_is_reported(ssh_hosts: SshHosts) -> None:
    job = ssh_hosts.run("-p", "2", "-H", "host1,host2", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    for name in ("host1", "host2"):
        assert re.search(
            f"cannot start the job on {name}: .*Connection refused; .*--ssh-port", job.errors
        )


def test_a_wrong_ssh_key_is_reported(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    job = ssh_hosts.run("-i", str(tmp_path / "other"), "-H", "host1", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    assert re.search(
        "cannot start the job on host1: .*Permission denied.*--ssh-identity-file", job.errors
    )


@contextmanager
def replace_known_hosts(ssh_hosts: SshHosts, text: str) -> Iterator[None]:
    """Replace the host keys that the driver's host knows, until the end of the `with` block."""
    file = ssh_hosts.hosts[0].settings / "ssh/ssh_known_hosts"
    content_before = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(content_before)
        (ssh_hosts.servers.home("host0") / ".ssh/known_hosts").unlink(missing_ok=True)


def test_an_unknown_host_key(ssh_hosts: SshHosts) -> None:
    words = ("-H", "host1,host2", "sh", "-c", "echo here")
    with replace_known_hosts(ssh_hosts, ""):
        job = ssh_hosts.run(*words)
        assert job.process.returncode == 1
        for name in ("host1", "host2"):
            assert re.search(
                f"on {name}: .*verification failed.*--ssh-accept-new-hosts", job.errors
            )
        assert ssh_hosts.run("--ssh-accept-new-hosts", *words).process.returncode == 0
        assert ssh_hosts.run(*words).process.returncode == 0  # ssh has remembered the new keys


def test_another_host_key_is_never_accepted(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    other_key = f"host1 {(tmp_path / 'other.pub').read_text()}"
    with replace_known_hosts(ssh_hosts, other_key):
        job = ssh_hosts.run("--ssh-accept-new-hosts", "-H", "host1", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    assert "cannot start the job on host1:" in job.errors
    assert "verification failed" in job.errors


@contextmanager
def write_start_up_file(ssh_hosts: SshHosts, node: int, text: str) -> Iterator[None]:
    file = ssh_hosts.servers.home(f"host{node}") / ".bashrc"
    file.write_text(text)
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(
    "script",
    [
        "echo hello; echo trouble >&2",
        "printf 'no line end'",
        "printf 'no line end' >&2",
        "echo listens 1.2.3.4:5; echo begins; echo farandole agent",
        "seq 100000; seq 100000 >&2",
        "printf '\\033[31mred\\r\\n\\377\\n'",
        "set -e; cd /; export OMP_NUM_THREADS=7",
    ],
)
def test_output_of_start_up_files_does_no_harm(ssh_hosts: SshHosts, node: int, script: str) -> None:
    with write_start_up_file(ssh_hosts, node, script + "\n"):
        job = ssh_hosts.run(
            "-H", "host0,host1", "sh", "-c", "echo $RANK $OMP_NUM_THREADS; echo err >&2"
        )
    assert job.process.returncode == 0, job.errors
    assert sorted(job.output.splitlines()) == ["[0] 0 1", "[1] 1 1"]
    assert {"[0] err", "[1] err"} <= set(job.errors.splitlines())
    if "hello" in script:
        assert f"farandole: host{node}: hello\n" in job.errors
        assert f"farandole: host{node}: trouble\n" in job.errors


@pytest.mark.parametrize("text", ["exit 3", "echo sorry; exit 0", "kill -9 $$"])
def test_a_start_up_file_that_ends_the_session_is_reported(ssh_hosts: SshHosts, text: str) -> None:
    with write_start_up_file(ssh_hosts, 1, text + "\n"):
        job = ssh_hosts.run("-H", "host0,host1", "sh", "-c", "echo here")
    assert job.process.returncode == 1
    assert job.errors.count("cannot start the job on host1: ") == 1
    assert ("sorry" in job.errors) == ("sorry" in text)
    assert job.output == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-H", "host1", "-n", "2"], "-n is 2, but the hosts have only 1 slot"),
        (["-H", "host1", "--tag-rank", "1"], "--tag-rank"),
    ],
)
def test_wrong_flags_start_nothing(ssh_hosts: SshHosts, words: list[str], message: str) -> None:
    logins_before = ssh_hosts.login_count(1)
    job = ssh_hosts.run(*words, "sh", "-c", "echo here")
    assert job.process.returncode == 2
    assert message in job.errors
    assert ssh_hosts.login_count(1) == logins_before


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_lets_workers_end_by_themselves(ssh_hosts: SshHosts, number: int) -> None:
    name = signal.Signals(number).name[3:]
    script = f"trap 'echo ends; exit 0' {name}; echo waits as $$; while :; do sleep 0.05; done"
    hosts = f"{ssh_hosts.hosts[0].v4},host1:2"
    with ssh_hosts.start("-H", hosts, "sh", "-c", script) as job:
        waiting_workers(job, 3)
        job.send(number)
        assert job.end() == 128 + number
        ssh_hosts.wait_for_end_of(job)
    assert job.output.count("ends") == 3
    assert f"SIG{name}" in job.errors


def test_the_second_signal_kills(ssh_hosts: SshHosts) -> None:
    script = "trap : INT; echo waits as $$; while :; do sleep 0.05; done"
    with ssh_hosts.start("-H", "host0,host1:2", "sh", "-c", script) as job:
        waiting_workers(job, 3)
        job.send(signal.SIGINT)
        # Node 0 may learn of the signal from node 1 before it gets the signal itself.
        notice = read_errors_until(
            job, "SIGINT passed on to |the workers of this node get the signal"
        )
        time.sleep(SECONDS_BETWEEN_SIGNALS)
        job.send(signal.SIGINT)
        assert job.end() == 128 + signal.SIGINT
        ssh_hosts.wait_for_end_of(job)
    # If node 0 was slow, it has got both signals together, and they count as one. Then the workers
    # are killed after the grace time.
    texts = ["a second signal (SIGINT); killing"]
    if not notice[0].startswith("SIGINT passed on"):
        texts.append("did not end within")
    assert any(text in job.errors for text in texts), job.errors


def test_a_signal_before_the_job_has_begun_ends_the_driver(ssh_hosts: SshHosts) -> None:
    with (
        write_start_up_file(ssh_hosts, 1, "echo >&2 late; sleep 1000\n"),
        ssh_hosts.start("-H", "host0,host1", "sh", "-c", "echo here") as job,
    ):
        wait_until(lambda: ssh_hosts.find(1, "sleep 1000"))
        job.send(signal.SIGINT)
        assert job.end() == 128 + signal.SIGINT
        # The shell on host1 goes on, because it does not notice that its session has ended.
        for pid in ssh_hosts.processes(1):
            kill(pid)
        ssh_hosts.wait_for_end_of(job)
    assert job.output == ""


def process_states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_workers_are_stopped_and_continued(ssh_hosts: SshHosts) -> None:
    hosts = f"{ssh_hosts.hosts[0].v4},host1:2"
    with ssh_hosts.start("-H", hosts, "sh", "-c", WAIT_SCRIPT) as job:
        workers = waiting_workers(job, 3)
        wait_until(lambda: process_states(workers) == {"S"})
        for _ in range(2):
            job.send(signal.SIGTSTP)
            wait_until(lambda: process_states(workers) == {"T"})
            wait_until(lambda: process_states([job.process.pid]) == {"T"})
            job.send(signal.SIGCONT)
            wait_until(lambda: process_states(workers) == {"S"})
        job.send(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM
        ssh_hosts.wait_for_end_of(job)


def test_user_signals_reach_all_workers(ssh_hosts: SshHosts) -> None:
    script = (
        "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo waits as $$; "
        "while :; do sleep 0.05; done"
    )
    hosts = f"{ssh_hosts.hosts[0].v4},host1:2"
    with ssh_hosts.start("-H", hosts, "sh", "-c", script) as job:
        waiting_workers(job, 3)
        job.send(signal.SIGUSR1)
        job.read_until("one", times=3)
        job.send(signal.SIGUSR2)
        assert job.end() == 0
        ssh_hosts.wait_for_end_of(job)
    assert job.output.count("two") == 3


def test_a_closed_output_ends_the_job(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.start("-H", "host0,host1", "yes") as job:
        assert job.process.stdout is not None
        job.process.stdout.readline()
        os.close(job.process.stdout.fileno())
        wait_until(lambda: job.process.poll() is not None)
        assert job.process.returncode == 128 + signal.SIGPIPE
        job.process.stdout = None
        ssh_hosts.wait_for_end_of(job)


# Kills. No process may be left.


def processes_of_kind(ssh_hosts: SshHosts, job: CommandRun, kind: str, node: int) -> list[int]:
    """List the processes of this kind that serve the part of the job on this host."""
    if kind == "driver":
        return [job.process.pid]
    if kind == "ssh":
        return [
            pid
            for pid in ssh_hosts.find(0, "ssh -T", f"host{node}")
            if parent_of(pid) == job.process.pid
        ]
    if kind == "foreground":
        return ssh_hosts.foreground_processes(node)
    if kind == "agent":
        return ssh_hosts.agents(node)
    processes = ssh_hosts.processes(node).items()
    if kind == "worker":
        return [pid for pid, words in processes if words == SLEEP_WORDS]
    return [pid for pid, words in processes if words[0].startswith("sshd: ")]


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("kind", PROCESS_KINDS)
def test_nothing_outlives_a_killed_process(ssh_hosts: SshHosts, kind: str, node: int) -> None:
    script = f"setsid sleep 1001 & {WAIT_SCRIPT}"
    with ssh_hosts.start("-H", "host0:2,host1:2", "sh", "-c", script) as job:
        waiting_workers(job, 4)
        pids: list[int] = []
        while not pids:  # a worker may not have started its program yet
            pids = processes_of_kind(ssh_hosts, job, kind, node)
        kill(pids[-1])
        code = job.end()
        ssh_hosts.wait_for_end_of(job)
    assert code == -signal.SIGKILL if kind == "driver" else code > 0, job.errors
    if kind in ("agent", "worker"):
        assert "SIGKILL" in job.errors
    if kind != "driver":
        assert f"host{node}" in job.errors
