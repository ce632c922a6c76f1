"""Ranks on several hosts that are started without `farandole run`. The hosts are network
namespaces. Most tests start the ranks themselves, with the variables that another launcher would
set."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from launched import run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Hosts, reason_if_impossible

WHY_IMPOSSIBLE = reason_if_impossible()
pytestmark = pytest.mark.skipif(bool(WHY_IMPOSSIBLE), reason=WHY_IMPOSSIBLE)

FOLDER = Path(__file__).parent
WORKER = str(FOLDER / "rank_on_host.py")
PORT = 4712
TIMEOUT_SECONDS = 240
CYCLES = 3  # the same as in rank_on_host.py

Variables = dict[str, str]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = str(tmp_path / "secret")
    assert run("secret", path).process.returncode == 0
    return path


def torchrun_variables(hosts: Hosts, rank: int, size: int, local: tuple[int, int]) -> Variables:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local[0]),
        "LOCAL_WORLD_SIZE": str(local[1]),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "7",
    }


def mpirun_variables(hosts: Hosts, rank: int, size: int, local: tuple[int, int]) -> Variables:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local[0]),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local[1]),
        "PMIX_SERVER_TMPDIR": f"/tmp/of-host-of-{rank - local[0]}",
        "FARANDOLE_JOB_STORE": hosts[0].endpoint(PORT),
    }


def mpiexec_variables(hosts: Hosts, rank: int, size: int, local: tuple[int, int]) -> Variables:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(local[0]),
        "MPI_LOCALNRANKS": str(local[1]),
        "FARANDOLE_JOB_STORE": hosts[0].endpoint(PORT),
    }


def srun_variables(hosts: Hosts, rank: int, size: int, local: tuple[int, int]) -> Variables:
    first_host_size = local[1] if rank < local[1] else size - local[1]
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local[0]),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": f"{first_host_size},{size - first_host_size}",
        "SLURM_STEP_NODELIST": f"{hosts[0].address},{hosts[1].address}",
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
    }


def by_hand_variables(hosts: Hosts, rank: int, size: int, local: tuple[int, int]) -> Variables:
    """Return only the rank, the size, and the address of the store. The ranks must find out
    themselves which of them are on the same host."""
    return {
        "FARANDOLE_RANK": str(rank),
        "FARANDOLE_SIZE": str(size),
        "FARANDOLE_JOB_STORE": hosts[0].endpoint(PORT),
    }


LAUNCHERS = {
    "torchrun": torchrun_variables,
    "mpirun": mpirun_variables,
    "mpiexec": mpiexec_variables,
    "srun": srun_variables,
    "by_hand": by_hand_variables,
}


class Ranks:
    """The processes of one job, by rank, and what they have written."""

    def __init__(self, hosts: Hosts, launcher: str, ranks_of_hosts: Sequence[int]) -> None:
        self.hosts, self.launcher = hosts, launcher
        # For each rank: its host, its local rank, and the number of ranks on that host.
        self.local_ranks = [
            (host, (local, count))
            for host, count in enumerate(ranks_of_hosts)
            for local in range(count)
        ]
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, *words: str, **variables: str) -> None:
        host, local = self.local_ranks[rank]
        launcher_variables = LAUNCHERS[self.launcher](
            self.hosts, rank, len(self.local_ranks), local
        )
        self.processes[rank] = self.hosts[host].start(
            sys.executable,
            *words,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | launcher_variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def start_all(self, *words: str, **variables: str) -> None:
        for rank in range(len(self.local_ranks)):
            self.start(rank, *words, **variables)

    def end(self) -> tuple[list[int], list[str]]:
        """Return the exit codes and the outputs, by rank."""
        outputs = [
            process.communicate(timeout=TIMEOUT_SECONDS)[0]
            for _, process in sorted(self.processes.items())
        ]
        return [process.returncode for _, process in sorted(self.processes.items())], outputs


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("ranks_of_hosts", [(2, 2), (3, 1)], ids=str)
def test_ranks_of_a_launcher_form_a_job(
    hosts: Hosts, secret: str, launcher: str, ranks_of_hosts: tuple[int, int]
) -> None:
    ranks = Ranks(hosts, launcher, ranks_of_hosts)
    ranks.start_all(WORKER, FARANDOLE_SECRET=secret)
    codes, outputs = ranks.end()
    assert codes == [0] * 4, outputs
    for rank, (host, (local_rank, local_size)) in enumerate(ranks.local_ranks):
        cross_size = sum(local_rank < count for count in ranks_of_hosts)
        rank_text = f"local {local_rank}/{local_size}, cross {host}/{cross_size}"
        for life in range(CYCLES):
            assert f"life {life}: rank {rank} of 4, {rank_text}" in outputs[rank]
    results = collections.Counter(re.findall(r"^result (\w+)$", "".join(outputs), re.M))
    assert list(results.values()) == [4 * CYCLES]


@pytest.mark.parametrize("dead_rank", [0, 3])
def test_the_others_name_a_rank_that_dies(hosts: Hosts, secret: str, dead_rank: int) -> None:
    ranks = Ranks(hosts, "mpirun", (2, 2))
    ranks.start_all(WORKER, "die", str(dead_rank), FARANDOLE_SECRET=secret)
    codes, outputs = ranks.end()
    pid = ranks.processes[dead_rank].pid
    assert codes == [-9 if rank == dead_rank else 1 for rank in range(4)], outputs
    for rank in {0, 1, 2, 3} - {dead_rank}:
        assert f"rank {dead_rank} (pid {pid}) has died" in outputs[rank]


@pytest.mark.parametrize("late_rank", [1, 3])
def test_rank_0_names_a_rank_that_is_late(
    hosts: Hosts, secret: str, tmp_path: Path, late_rank: int
) -> None:
    """Rank 1 is on the host of rank 0, rank 3 on the other host."""
    go_file = tmp_path / "go"
    ranks = Ranks(hosts, "mpirun", (2, 2))
    ranks.start_all(
        *(WORKER, "late", str(late_rank), str(go_file)),
        FARANDOLE_SECRET=secret,
        FARANDOLE_STALL_WARNING="1",
    )
    output = ranks.processes[0].stdout
    assert output is not None
    pid = ranks.processes[late_rank].pid
    advice = f"to see where rank {late_rank} is, run `py-spy dump --pid {pid}` on"
    errors_of_rank_0 = ""
    while advice not in errors_of_rank_0:
        line = output.readline()
        assert line, errors_of_rank_0
        errors_of_rank_0 += line
    go_file.touch()
    codes, outputs = ranks.end()
    assert codes == [0] * 4, outputs
    assert re.search(
        rf"warning: stalled: .* waits for rank {late_rank}$", errors_of_rank_0, re.M
    ), errors_of_rank_0
    assert all("stalled" not in text for text in outputs[1:]), outputs


def test_ranks_need_the_secret(hosts: Hosts) -> None:
    ranks = Ranks(hosts, "torchrun", (2, 2))
    ranks.start(3, WORKER)
    codes, outputs = ranks.end()
    assert codes == [1]
    assert (
        "CallError: torchrun has started rank 3 of 4, and not all ranks are on this" in outputs[0]
    )
    assert "farandole secret FILE" in outputs[0]


def test_ranks_need_a_place_to_meet(hosts: Hosts, secret: str) -> None:
    ranks = Ranks(hosts, "mpirun", (2, 2))
    ranks.start(1, WORKER, FARANDOLE_SECRET=secret, FARANDOLE_JOB_STORE="")
    codes, outputs = ranks.end()
    assert codes == [1]
    assert "CallError: rank 1 of 4 does not know where the ranks meet" in outputs[0]
    assert "set FARANDOLE_JOB_STORE=HOST:PORT" in outputs[0]


def test_all_ranks_need_the_same_secret(hosts: Hosts, secret: str, tmp_path: Path) -> None:
    other_secret = str(tmp_path / "other")
    assert run("secret", other_secret).process.returncode == 0
    ranks = Ranks(hosts, "mpirun", (1, 1))
    for rank, file in enumerate((secret, other_secret)):
        ranks.start(rank, WORKER, FARANDOLE_SECRET=file, FARANDOLE_START_TIMEOUT="5")
    codes, outputs = ranks.end()
    assert codes == [1, 1]
    assert "rank 1 did not come" in outputs[0]
    assert (
        f"could not connect to the rendezvous of the job at {hosts[0].endpoint(PORT)}"
        in (outputs[1])
    )
    assert "with the secret of this job" in outputs[1]


def test_the_place_must_be_on_the_host_of_rank_0(hosts: Hosts, secret: str) -> None:
    ranks = Ranks(hosts, "mpirun", (1, 1))
    endpoint_of_host1 = hosts[1].endpoint(PORT)
    ranks.start(0, WORKER, FARANDOLE_SECRET=secret, FARANDOLE_JOB_STORE=endpoint_of_host1)
    codes, outputs = ranks.end()
    assert codes == [1]
    assert f"CallError: rank 0 cannot listen at {endpoint_of_host1}" in outputs[0]


def test_a_secret_changes_nothing_for_a_process_alone(hosts: Hosts, secret: str) -> None:
    program = "import farandole; farandole.init(); print('size', farandole.size())"
    variables = {"FARANDOLE_SECRET": secret, "FARANDOLE_JOB_STORE": hosts[0].endpoint(PORT)}
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert completed.stdout == "size 1\n"


USES_THE_BACKEND = """
import os, torch, torch.distributed as dist
import farandole.torch
dist.init_process_group("farandole")
rank, found = dist.get_rank(), []
everybody = torch.full((1000,), float(rank + 1))
dist.all_reduce(everybody)
found.append(everybody[-1].item())
for members in ([1, 2], [1, 3]):
    local = {"use_local_synchronization": members == [1, 3]}
    if local["use_local_synchronization"] and rank not in members:
        continue
    group = dist.new_group(members, **local)
    if rank in members:
        some = torch.full((10,), float(rank + 1))
        dist.all_reduce(some, group=group)
        found.append(some[0].item())
dist.destroy_process_group()
os.write(1, f"rank {rank} found {found}\\n".encode())
"""


def test_torchrun_starts_ranks_on_each_host(hosts: Hosts, secret: str, tmp_path: Path) -> None:
    """The real torchrun, the backend of torch.distributed, and groups of ranks of both hosts."""
    program = tmp_path / "program.py"
    program.write_text(USES_THE_BACKEND)
    launchers = [
        host.start(
            sys.executable,
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=7"),
            *(f"--node-rank={node}", f"--master-addr={hosts[0].address}", str(program)),
            env=os.environ | {"OMP_NUM_THREADS": "1", "FARANDOLE_SECRET": secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node, host in enumerate(hosts)
    ]
    outputs = [launcher.communicate(timeout=TIMEOUT_SECONDS) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert sorted("".join(output for output, _ in outputs).splitlines()) == [
        "rank 0 found [10.0]",
        "rank 1 found [10.0, 5.0, 6.0]",
        "rank 2 found [10.0, 5.0]",
        "rank 3 found [10.0, 6.0]",
    ]
