"""Jobs that mpirun of Open MPI or mpiexec of MPICH starts. Both are the real programs; they reach
the hosts, which are network namespaces, over ssh."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import SshHosts, kill
from launched import CommandRun, command, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Hosts
from mpi_launchers import MPIEXEC, MPIRUN, find_launchers, mpirun_words
from mpi_launchers import reason_if_impossible as why_no_mpi
from ssh_servers import SshServers
from ssh_servers import reason_if_impossible as why_no_servers
from unpacked_packages import overlay_prefix

PORT = 4711
WORKER = str(Path(__file__).with_name("small_worker.py"))
SHOW_RANK = (
    "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $(hostname), "
    "node $GROUP_RANK, OMPI_COMM_WORLD_RANK=$OMPI_COMM_WORLD_RANK PMI_RANK=$PMI_RANK"
)
WAIT_SCRIPT = "echo waits as $$; exec sleep 1000"
# Without NO_COLOR, the launchers would use colors, because mpirun gives its processes a terminal.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
EXPORTED_VARIABLES = [
    word for name in ("FARANDOLE_TEST_MARK", *ENVIRONMENT) for word in ("-x", name)
]
ONE_HOST_FLAGS = {
    "mpirun": [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "4"],
    "mpiexec": [MPIEXEC, "-n", "4"],
}


class MpiHosts(SshHosts):
    """Hosts on which mpirun and mpiexec can start jobs from host0."""

    def start_command(self, *words: str) -> CommandRun:
        enter_host = overlay_prefix("host0", find_launchers())
        program, *arguments = self.hosts[0].command(*enter_host, *words)
        return CommandRun(*arguments, program=program, environment=ENVIRONMENT)

    def start_on_each_host(self, launcher: str, secret: str, *program: str) -> CommandRun:
        """Start `farandole run` on each host, with two workers each."""
        names = self.servers.names
        if launcher == "mpirun":
            mpi_words = mpirun_words(self.servers, *EXPORTED_VARIABLES)
        else:
            mpi_words = [MPIEXEC, "-hosts", ",".join(names), "-ppn", "1", "-n", str(len(names))]
            mpi_words += ["-launcher", "ssh"]
        words = ["run", "--join", self.hosts[0].endpoint(PORT), "--secret", secret, "-n", "2"]
        return self.start_command(*mpi_words, command(), *words, *program)

    def wait_for_end(self, job: CommandRun) -> int:
        """Wait for the end of a job, and check that no process of it is left."""
        with job:
            code = job.end()
            self.wait_for_end_of(job)
        return code


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpiHosts]:
    if reason := why_no_servers() or why_no_mpi():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("mpi")
    with Hosts(2) as hosts, SshServers(hosts, folder, usr_overlay=find_launchers()) as servers:
        for name in servers.names:  # mpiexec has no option for the ssh key
            (home := servers.home(name) / ".ssh").mkdir(mode=0o700, exist_ok=True)
            (home / "config").write_text(f"IdentityFile {servers.identity}\n")
        yield MpiHosts(hosts, servers)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = str(tmp_path / "secret")
    assert run("secret", path).process.returncode == 0
    return path


def ranks_in(output: str) -> list[str]:
    return sorted(re.findall(r"^\[\d\] (rank .*)$", output, re.MULTILINE))


@pytest.mark.parametrize(
    ("launcher", "numbers"),
    [
        ("mpirun", "OMPI_COMM_WORLD_RANK={node} PMI_RANK="),
        ("mpiexec", "OMPI_COMM_WORLD_RANK= PMI_RANK={node}"),
    ],
)
def test_the_launcher_gives_the_numbers_of_the_nodes(
    mpi: MpiHosts, secret: str, launcher: str, numbers: str
) -> None:
    job = mpi.start_on_each_host(launcher, secret, "sh", "-c", SHOW_RANK)
    assert mpi.wait_for_end(job) == 0, job.errors
    assert ranks_in(job.output) == [
        f"rank {rank} of 4, {rank % 2} of 2 on host{rank // 2}, node {rank // 2}, "
        + numbers.format(node=rank // 2)
        for rank in range(4)
    ]


@pytest.mark.parametrize("launcher", ["mpirun", "mpiexec"])
def test_the_ranks_of_all_hosts_compute_together(mpi: MpiHosts, secret: str, launcher: str) -> None:
    job = mpi.start_on_each_host(launcher, secret, sys.executable, WORKER, "make_many_calls")
    assert mpi.wait_for_end(job) == 0, job.errors
    assert job.output.count("all 400 right") == 4


@pytest.mark.parametrize("launcher", ["mpirun", "mpiexec"])
@pytest.mark.parametrize("failing_rank", [0, 3])
def test_a_failing_worker_ends_the_job(
    mpi: MpiHosts, secret: str, launcher: str, failing_rank: int
) -> None:
    """mpirun ends with the exit code of the launcher that ends first, so all launchers must have
    the exit code of the worker."""
    script = f"[ $RANK != {failing_rank} ] || exit 7; {WAIT_SCRIPT}"
    job = mpi.start_on_each_host(launcher, secret, "sh", "-c", script)
    assert mpi.wait_for_end(job) == 7, job.errors
    cause = rf"│ rank {failing_rank} \(host{failing_rank // 2}, pid \d+\) exited with code 7 +│"
    assert re.search(cause, job.errors)


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("mpirun", signal.SIGTERM), ("mpirun", signal.SIGKILL), ("mpiexec", signal.SIGKILL)],
)
def test_the_end_of_the_launcher_ends_the_workers_of_all_hosts(
    mpi: MpiHosts, secret: str, launcher: str, number: signal.Signals
) -> None:
    with mpi.start_on_each_host(launcher, secret, "sh", "-c", WAIT_SCRIPT) as job:
        job.read_until("waits", times=4)
        kill(job.process.pid, number)
        code = job.end()
        mpi.wait_for_end_of(job)
    assert code != 0, job.errors


@pytest.mark.parametrize("launcher", list(ONE_HOST_FLAGS))
def test_the_launcher_can_start_the_ranks_of_one_host(mpi: MpiHosts, launcher: str) -> None:
    job = mpi.start_command(*ONE_HOST_FLAGS[launcher], sys.executable, WORKER, "make_many_calls")
    assert mpi.wait_for_end(job) == 0, job.errors
    assert job.output.count("all 400 right") == 4
