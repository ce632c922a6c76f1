"""Jobs over several hosts. The hosts are network namespaces, and the workers are shell scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from launched import CommandRun, command, run
from test_stalls import fake_py_spy, read_errors_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Host, Hosts, namespaces, reason_if_impossible

WHY_IMPOSSIBLE = reason_if_impossible()
pytestmark = pytest.mark.skipif(bool(WHY_IMPOSSIBLE), reason=WHY_IMPOSSIBLE)

PORT = 4711
SHOW_VARIABLES = (
    'echo "RANK=$RANK WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK '
    "LOCAL_WORLD_SIZE=$LOCAL_WORLD_SIZE GROUP_RANK=$GROUP_RANK MASTER_ADDR=$MASTER_ADDR "
    "MASTER_PORT=$MASTER_PORT STORE=$FARANDOLE_JOB_STORE OWN=$FARANDOLE_RANK/$FARANDOLE_SIZE,"
    "$FARANDOLE_LOCAL_RANK/$FARANDOLE_LOCAL_SIZE,$FARANDOLE_CROSS_RANK/$FARANDOLE_CROSS_SIZE "
    'HOROVOD=$HOROVOD_RANK/$HOROVOD_SIZE"'
)
# A worker that reads the secret as the engine does, compares it with the file, and tries to change
# it.
READ_SECRET = """
import os, sys
secret = int(os.environ["FARANDOLE_SECRET_DESCRIPTOR"])
same = os.read(secret, 33) == open(sys.argv[1], "rb").read()
try:
    os.write(os.open(f"/proc/self/fd/{secret}", os.O_WRONLY), b"x")
    sealed = False
except OSError:
    sealed = True
print(f"same {same}, sealed {sealed}")
"""
WAIT_SCRIPT = "echo waits as $$; exec sleep 1000"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    assert run("secret", str(path)).process.returncode == 0
    return path


class Job:
    """The launchers of one job, by node. start() starts them one by one, and the end of the `with`
    block kills those that are left."""

    def __init__(self, hosts: Hosts, secret: Path, endpoint: str | None = None) -> None:
        self.hosts, self.secret = hosts, secret
        self.endpoint = endpoint or hosts[0].endpoint(PORT)
        self.launched: list[CommandRun] = []

    def start(
        self, node: int, script: str, *options: str, workers: int = 1, host: Host | None = None
    ) -> CommandRun:
        """Start the launcher of a node, on its own host or on `host`. If an option is given twice,
        the one in `options` wins."""
        chosen_host = host or self.hosts[node]
        words = chosen_host.command(command(), "run", "--join", self.endpoint, "--nodes", "2")
        words += ["--node", str(node), "--secret", str(self.secret)]
        words += ["-n", str(workers), *options, "sh", "-c", script]
        launched = CommandRun(*words[1:], program=words[0])
        launched.__enter__()
        self.launched.append(launched)
        return launched

    def end(self) -> list[int]:
        """Wait until all launchers have ended; return their exit codes."""
        codes = [launched.end() for launched in self.launched]
        for launched in self.launched:
            assert launched.remaining_processes() == []
        return codes

    def close(self) -> None:
        for launched in self.launched:
            launched.__exit__(None, None, None)


@pytest.fixture
def job(hosts: Hosts, secret: Path) -> Iterator[Job]:
    job = Job(hosts, secret)
    try:
        yield job
    finally:
        job.close()


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))


def test_variables_count_over_all_nodes(job: Job) -> None:
    node_0 = job.start(0, SHOW_VARIABLES, workers=3)
    node_1 = job.start(1, SHOW_VARIABLES, workers=1)
    assert job.end() == [0, 0]
    lines = {line[: line.index("]") + 1]: fields(line) for line in node_0.output.splitlines()}
    assert sorted(lines) == ["[0]", "[1]", "[2]"]
    assert node_1.output.startswith("[3] ")
    lines["[3]"] = fields(node_1.output)
    for rank in range(4):
        values = lines[f"[{rank}]"]
        node, local_rank, local_size = (0, rank, 3) if rank < 3 else (1, 0, 1)
        cross_size = 2 if local_rank == 0 else 1
        assert values["RANK"] == str(rank)
        assert values["WORLD_SIZE"] == "4"
        assert values["LOCAL_RANK"] == str(local_rank)
        assert values["LOCAL_WORLD_SIZE"] == str(local_size)
        assert values["GROUP_RANK"] == str(node)
        assert values["MASTER_ADDR"] == job.hosts[0].address
        assert values["STORE"] == job.endpoint
        assert values["HOROVOD"] == f"{rank}/4"
        assert values["OWN"] == f"{rank}/4,{local_rank}/{local_size},{node}/{cross_size}"
    assert len({values["MASTER_PORT"] for values in lines.values()}) == 1
    assert int(lines["[0]"]["MASTER_PORT"]) > 0


def test_the_order_of_starting_does_not_matter(job: Job) -> None:
    node_1 = job.start(1, "echo here")
    read_errors_until(node_1, "waiting for node 0 of 2 at")
    node_0 = job.start(0, "echo here")
    assert job.end() == [0, 0]
    assert (node_0.output, node_1.output) == ("[0] here\n", "[1] here\n")


def test_a_launcher_says_whom_it_waits_for(job: Job) -> None:
    node_0 = job.start(0, "echo here", "--nodes", "3")
    read_errors_until(node_0, f"waiting for nodes 1, 2 of 3 at {job.endpoint}")
    node_1 = job.start(1, "echo here", "--nodes", "3")
    read_errors_until(node_1, "waiting for node 2 of 3")
    read_errors_until(node_0, "waiting for node 2 of 3")
    job.start(2, "echo here", "--nodes", "3", host=job.hosts[1])
    assert job.end() == [0, 0, 0]


def test_names_are_looked_up_until_they_are_known(secret: Path) -> None:
    with Hosts(2) as hosts:
        for host in hosts:
            host.set_names({})
        job = Job(hosts, secret, endpoint=f"node0.test:{PORT}")
        try:
            node_1 = job.start(1, SHOW_VARIABLES)
            read_errors_until(node_1, f"waiting for node 0 of 2 at node0.test:{PORT}")
            for host in hosts:
                host.set_names({"node0.test": hosts[0].address})
            job.start(0, SHOW_VARIABLES)
            assert job.end() == [0, 0]
        finally:
            job.close()
        assert fields(node_1.output)["MASTER_ADDR"] == "node0.test"


def test_hosts_may_have_only_ipv6(secret: Path) -> None:
    with Hosts(2, v6_only=True) as hosts:
        job = Job(hosts, secret)
        try:
            node_0, node_1 = (job.start(node, SHOW_VARIABLES) for node in range(2))
            assert job.end() == [0, 0]
        finally:
            job.close()
        assert fields(node_1.output)["MASTER_ADDR"] == hosts[0].v6
        assert fields(node_0.output)["STORE"] == f"[{hosts[0].v6}]:{PORT}"


def test_the_secret_is_in_no_argument_variable_or_output(job: Job) -> None:
    content = job.secret.read_bytes()
    script = f"{sys.executable} -c '{READ_SECRET}' {job.secret}; exec sleep 1000"
    node_1 = job.start(1, script, "--log-level", "trace", workers=2)
    node_0 = job.start(0, script, workers=1)
    for launched, workers in ((node_0, 1), (node_1, 2)):
        launched.read_until("same True, sealed True", times=workers)
        for pid in launched.remaining_processes():
            for name in ("environ", "cmdline"):
                visible_bytes = b""
                with suppress(OSError):  # the process may have ended
                    visible_bytes = Path(f"/proc/{pid}/{name}").read_bytes()
                assert content not in visible_bytes
                assert content.hex().encode() not in visible_bytes
    node_0.send(signal.SIGINT)
    job.end()
    for launched in job.launched:
        assert content.hex() not in launched.output + launched.errors


def test_a_second_launcher_of_the_same_node_fails(job: Job) -> None:
    node_0 = job.start(0, "echo here", "--nodes", "3")
    read_errors_until(node_0, "waiting for nodes 1, 2")
    node_1 = job.start(1, "echo here", "--nodes", "3")
    read_errors_until(node_0, "waiting for node 2")
    second_launcher = job.start(1, "echo here", "--nodes", "3")
    assert second_launcher.end() == 2
    assert "node 1 has already joined, on" in second_launcher.errors
    job.start(2, "echo here", "--nodes", "3", host=job.hosts[1])
    assert job.end() == [0, 0, 2, 0]
    assert node_1.output == "[1] here\n"
    assert "a launcher was rejected: node 1 has already joined" in node_0.errors


def test_a_second_launcher_of_node_zero_fails(job: Job) -> None:
    node_0 = job.start(0, "echo here")
    read_errors_until(node_0, "waiting for node 1 of 2")
    second_launcher = job.start(0, "echo here")
    assert second_launcher.end() == 1
    assert "is there another node 0?" in second_launcher.errors
    third_launcher = job.start(0, "echo here", host=job.hosts[1])
    assert third_launcher.end() == 2
    assert "is not an address of this host" in third_launcher.errors
    job.start(1, "echo here")
    assert job.end() == [0, 1, 2, 0]


def test_different_numbers_of_nodes_fail_on_all_nodes(job: Job) -> None:
    node_0 = job.start(0, "echo here", "--nodes", "2")
    read_errors_until(node_0, "waiting for node 1 of 2")
    node_1 = job.start(1, "echo here", "--nodes", "3")
    assert job.end() == [2, 2]
    for launched in (node_0, node_1):
        assert "node 0 was started with --nodes 2, and node 1 on" in launched.errors
        assert launched.output == ""


def test_different_secrets_fail_on_both_nodes(job: Job, tmp_path: Path) -> None:
    other_secret = tmp_path / "other"
    assert run("secret", str(other_secret)).process.returncode == 0
    node_0 = job.start(0, "echo here", "--start-timeout", "20")
    node_1 = job.start(1, "echo here", "--secret", str(other_secret))
    assert job.end() == [1, 2]
    assert "the file with the secret must be the same on all hosts" in node_1.errors
    assert "its file with the secret is different" in node_0.errors
    assert f"node 1 of 2 has not come to {job.endpoint} within 20 s" in node_0.errors
    assert "connections were rejected" in node_0.errors


def test_node_zero_says_that_it_does_not_know_the_name(job: Job) -> None:
    node_0 = job.start(0, "echo here", "--join", "nowhere.invalid:4711")
    read_errors_until(
        node_0, "node 0 cannot listen at nowhere.invalid:4711 yet: the name is not known"
    )
    node_0.send(signal.SIGTERM)
    assert node_0.end() != 0


@pytest.mark.parametrize("present_node", [0, 1])
def test_the_start_timeout_names_the_missing_node(job: Job, present_node: int) -> None:
    launcher = job.start(present_node, "echo here", "--start-timeout", "2")
    assert job.end() == [1]
    missing = "node 1 of 2 has not come" if present_node == 0 else "node 0 of 2 was not reached"
    assert missing in launcher.errors
    assert launcher.output == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_ends_a_launcher_that_waits(job: Job, node: int, number: int) -> None:
    waiting_launcher = job.start(node, "echo here")
    read_errors_until(waiting_launcher, "waiting for node")
    for harmless in (signal.SIGWINCH, signal.SIGUSR1, signal.SIGCONT):
        waiting_launcher.send(harmless)  # no worker exists that could get the signal
    waiting_launcher.send(number)
    assert job.end() == [128 + number]
    assert "before all nodes had joined" in waiting_launcher.errors


@pytest.mark.parametrize("failing_node", [0, 1])
def test_a_failing_worker_ends_all_nodes(job: Job, failing_node: int) -> None:
    scripts = [WAIT_SCRIPT, WAIT_SCRIPT]
    scripts[failing_node] = "exit 7"
    launched = [job.start(node, scripts[node]) for node in range(2)]
    codes = job.end()
    assert codes == [7, 7]
    other_launcher = launched[1 - failing_node]
    assert f"node {failing_node} (" in other_launcher.errors
    assert f"rank {failing_node} (pid " in other_launcher.errors
    assert "has exited with code 7" in other_launcher.errors
    assert "exited with code 7 " in launched[failing_node].errors
    # Node 0 shows the box of the node that failed first.
    assert ("─ exit code 7 ─" in other_launcher.errors) == (failing_node == 1)


def test_a_node_that_succeeds_waits_for_the_others(job: Job, tmp_path: Path) -> None:
    go_file = tmp_path / "go"
    os.mkfifo(go_file)
    node_0 = job.start(0, "echo done")
    node_1 = job.start(1, f"echo waits; read line < {go_file}; exit 9")
    node_1.read_until("waits")
    node_0.read_until("done")
    read_errors_until(node_0, "all workers of this node have ended; waiting for those of the other")
    go_file.write_text("\n")
    assert job.end() == [9, 9]
    assert (
        "the workers of this node have succeeded, but the job has failed: node 1" in node_0.errors
    )


def states_in_status(launched: CommandRun) -> dict[int, tuple[str, list[int]]]:
    """For each rank that `farandole status` shows, return its state and the ranks that it waits
    for."""
    status = run("status", str(launched.process.pid), "--json")
    (job,) = json.loads(status.output)
    assert job["size"] == 2
    return {rank["rank"]: (rank["state"], rank["waits_for"]) for rank in job["ranks"]}


def test_a_rank_of_another_node_that_comes_late_is_reported(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = "printf 'Process %s\\n\\nThread %s (idle)\\n    evaluate (eval.py:88)\\n' $4 $4"
    for name, value in fake_py_spy(tmp_path, dump).items():
        monkeypatch.setenv(name, value)
    worker = Path(__file__).with_name("stalling_worker.py")
    script = shlex.join(["exec", sys.executable, str(worker), "come_late", str(tmp_path)])
    node_0, node_1 = (job.start(node, script, "--stall-warning", "1") for node in range(2))
    read_errors_until(node_0, r"stalled: barrier `[^`]+` waits for rank 1\n")
    read_errors_until(node_0, r"farandole:   rank 0 has been waiting in it for \d+(\.\d)? m?s")
    read_errors_until(
        node_0, r"farandole:   rank 1 \(.+, pid \d+\) has not called it; its last call,"
    )
    read_errors_until(node_0, r"farandole: rank 1 \(.+, pid \d+\) is here, innermost call first:")
    read_errors_until(node_0, r"farandole:     evaluate \(eval\.py:88\)")
    assert states_in_status(node_0) == {0: ("waits", [1]), 1: ("computes", [])}
    assert states_in_status(node_1) == {1: ("computes", [])}
    (tmp_path / "go").touch()
    read_errors_until(node_0, r"farandole: barrier `[^`]+` went on after \d+\.\d s")
    (tmp_path / "end").touch()
    assert job.end() == [0, 0]
    assert "stalled" not in node_1.errors


@pytest.mark.parametrize("node", [0, 1])
def test_ctrl_c_on_one_node_ends_all(job: Job, node: int) -> None:
    launched = [job.start(number, WAIT_SCRIPT, workers=2) for number in range(2)]
    for launcher in launched:
        launcher.read_until("waits as", times=2)
    launched[node].send(signal.SIGINT)
    codes = job.end()
    assert codes == [128 + signal.SIGINT] * 2
    assert f"node {node} (" in launched[1 - node].errors
    assert "SIGINT has ended it" in launched[1 - node].errors


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("victim", ["foreground", "agent"])
def test_nothing_outlives_a_killed_launcher(job: Job, node: int, victim: str) -> None:
    script = f"setsid sleep 1001 & echo agent $PPID; {WAIT_SCRIPT}"
    launched = [job.start(number, script) for number in range(2)]
    for launcher in launched:
        launcher.read_until("waits as")
    agent = int(re.findall(r"agent (\d+)", launched[node].output)[0])
    os.kill(launched[node].process.pid if victim == "foreground" else agent, signal.SIGKILL)
    codes = job.end()  # this also checks that no process is left
    assert codes[node] in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert codes[1 - node] == 1
    message = "the launcher of node 0 is gone" if node == 0 else "node 1 ("
    assert message in launched[1 - node].errors


def test_a_host_that_is_cut_off_ends_the_job(secret: Path) -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, secret)
        try:
            launched = [job.start(node, WAIT_SCRIPT) for node in range(2)]
            for launcher in launched:
                launcher.read_until("waits as")
            hosts[1].unplug()
            assert job.end() == [1, 1]
        finally:
            job.close()
    assert "is gone" in launched[0].errors
    assert "the launcher of node 0 is gone" in launched[1].errors


def test_output_files_and_shown_ranks_have_world_ranks(job: Job, tmp_path: Path) -> None:
    options = ("--output-dir", str(tmp_path / "log"), "--tag-rank", "1,3", "--prefix")
    launched = [
        job.start(node, "echo here", *options, "{rank}/{local_rank}: ", workers=2)
        for node in range(2)
    ]
    assert job.end() == [0, 0]
    assert [launcher.output for launcher in launched] == ["1/1: here\n", "3/1: here\n"]
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("stdout"))
    assert files == [f"log/rank.{rank}/stdout" for rank in range(4)]


def test_status_shows_world_ranks(job: Job) -> None:
    launched = [job.start(node, WAIT_SCRIPT, workers=2) for node in range(2)]
    for launcher in launched:
        launcher.read_until("waits as", times=2)
    # `ip netns exec` replaces itself by the launcher, so this is the pid of the launcher.
    shown = run("status", str(launched[1].process.pid)).output
    assert re.findall(r"^ +(\d) ", shown, re.MULTILINE) == ["2", "3"]
    launched[0].send(signal.SIGINT)
    job.end()


def test_status_on_node_zero_shows_the_cores_of_other_nodes(job: Job) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one hardware thread only")
    launched = [job.start(node, WAIT_SCRIPT, "--bind-to", "core", workers=2) for node in range(2)]
    for launcher in launched:
        launcher.read_until("waits as", times=2)
    cores: list[str | None] = []
    while len(cores) < 4:  # fail_after_timeout() limits this loop, too
        (shown_job,) = json.loads(run("status", str(launched[0].process.pid), "--json").output)
        cores = [row["cores"] for row in shown_job["ranks"]]
    assert None not in cores
    assert cores[:2] == cores[2:]
    launched[0].send(signal.SIGINT)
    job.end()


WRONG_FLAGS: list[tuple[list[str], str]] = [
    (["--nodes", "2"], "--nodes is given without --join, --node, --secret"),
    (["--join", "fox", "--nodes", "2", "--node", "0", "--secret", "s"], "the port is missing"),
    (["--join", "fox:1", "--nodes", "2", "--node", "2", "--secret", "s"], "numbered from 0 to 1"),
]


@pytest.mark.parametrize(("words", "message"), WRONG_FLAGS)
def test_wrong_words_start_nothing(words: list[str], message: str) -> None:
    launched = run("run", *words, "-n", "1", "echo", "here")
    assert launched.process.returncode == 2
    assert message in launched.errors
    assert launched.output == ""


def change_mode(path: Path) -> None:
    path.chmod(0o644)


def change_size(path: Path) -> None:
    path.write_bytes(b"short")


@pytest.mark.parametrize(
    ("change", "message"),
    [(change_mode, "its mode is 0644"), (change_size, "it has 5 bytes"), (Path.unlink, "No such")],
)
def test_a_bad_file_with_the_secret_starts_nothing(
    job: Job, change: Callable[[Path], None], message: str
) -> None:
    change(job.secret)
    launched = job.start(1, "echo here")
    assert job.end() == [2]
    assert message in launched.errors
    assert launched.output == ""


def test_the_secret_file_is_private_and_never_replaced(secret: Path) -> None:
    assert secret.stat().st_mode & 0o7777 == 0o600
    content_before = secret.read_bytes()
    assert len(content_before) == 32
    second_run = run("secret", str(secret))
    assert second_run.process.returncode == 2
    assert "File exists" in second_run.errors
    assert secret.read_bytes() == content_before
    assert run("secret").process.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_tool_removes_its_hosts(number: int) -> None:
    tool = Path(__file__).resolve().parents[2] / "tools/hosts.py"
    script = "ip netns identify $$; exec sleep 1000"
    with CommandRun(
        str(tool), "--hosts", "2", "sh", "-c", script, program=sys.executable
    ) as tool_run:
        tool_run.read_until("\n", times=2)
        names = re.findall(r"\| (\S+)", tool_run.output)
        assert len(names) == 2 and set(names) <= set(namespaces())
        tool_run.send(number)
        assert tool_run.end() == (-number if number == signal.SIGKILL else 1)
        assert tool_run.remaining_processes() == []
    assert not set(names) & set(namespaces())
