"""Jobs over several hosts that Slurm starts. It is the real Slurm, and the hosts are network
namespaces. tools/slurm_cluster_test.py says which variables Slurm sets."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import CommandRun, command, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Hosts
from slurm_cluster import SlurmCluster, reason_if_impossible

PORT = 4711
SHOW_RANK = "echo rank $RANK of $WORLD_SIZE on $(hostname), which has $LOCAL_WORLD_SIZE"
ALL_RANKS = [f"rank {rank} of 4 on host{rank // 2}, which has 2" for rank in range(4)]
WAIT_SCRIPT = "echo waits; exec sleep 1000"
ONE_ON_EACH_HOST = ("-N2", "--ntasks-per-node=1")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := reason_if_impossible():
        pytest.skip(reason)
    with Hosts(2) as hosts, SlurmCluster(hosts, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = str(tmp_path / "secret")
    assert run("secret", path).process.returncode == 0
    return path


def start_slurm(slurm: SlurmCluster, *words: str) -> CommandRun:
    program, *arguments = slurm.command(*words)
    return CommandRun(*arguments, program=program)


def run_to_end(slurm: SlurmCluster, *words: str) -> CommandRun:
    """Run a command of Slurm to its end, and check that no process of its job is left."""
    with start_slurm(slurm, *words) as launched:
        launched.end()
        assert launched.remaining_processes() == []
    return launched


def worker_words(script: str, count: int = 2) -> list[str]:
    return ["-n", str(count), "sh", "-c", script]


def ranks_in(output: str) -> list[str]:
    return sorted(re.findall(r"^\[\d\] (rank .*)$", output, re.MULTILINE))


def test_srun_starts_a_job_with_all_flags(slurm: SlurmCluster, secret: str) -> None:
    words = f"--join {slurm.hosts[0].endpoint(PORT)} --nodes 2 --node $SLURM_PROCID"
    script = f'exec {command()} run {words} --secret {secret} -n 2 sh -c "$0"'
    launched = run_to_end(slurm, "srun", *ONE_ON_EACH_HOST, "sh", "-c", script, SHOW_RANK)
    assert launched.process.returncode == 0, launched.errors
    assert ranks_in(launched.output) == ALL_RANKS


@pytest.mark.parametrize(
    "start",
    [
        ["srun", *ONE_ON_EACH_HOST],
        ["salloc", *ONE_ON_EACH_HOST, "srun"],
        ["srun", *ONE_ON_EACH_HOST, "--mpi=pmi2"],
    ],
    ids=["srun", "salloc", "pmi2"],
)
def test_srun_gives_the_numbers_of_the_nodes(
    slurm: SlurmCluster, secret: str, start: list[str]
) -> None:
    launched = run_to_end(
        slurm, *start, command(), "run", "--secret", secret, *worker_words(SHOW_RANK)
    )
    assert launched.process.returncode == 0, launched.errors
    assert ranks_in(launched.output) == ALL_RANKS


def test_srun_may_start_node_zero_on_any_host(
    slurm: SlurmCluster, secret: str, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("host1\nhost0\n")
    srun_words = ("srun", "-N2", "-n2", "--distribution=arbitrary", f"--nodelist={hosts}")
    words = ("run", "--start-timeout", "60", "--secret", secret, *worker_words(SHOW_RANK))
    launched = run_to_end(slurm, *srun_words, command(), *words)
    assert launched.process.returncode == 0, launched.errors
    assert len(ranks_in(launched.output)) == 4


def test_one_srun_on_one_host_needs_no_secret(slurm: SlurmCluster) -> None:
    launched = run_to_end(slurm, "srun", "-N1", "-n1", command(), "run", *worker_words(SHOW_RANK))
    assert launched.process.returncode == 0, launched.errors
    assert len(ranks_in(launched.output)) == 2


def test_salloc_alone_starts_a_job_on_its_own_host(slurm: SlurmCluster) -> None:
    words = ("salloc", *ONE_ON_EACH_HOST, command(), "run", *worker_words(SHOW_RANK))
    launched = run_to_end(slurm, *words)
    assert launched.process.returncode == 0, launched.errors
    assert ranks_in(launched.output) == [
        f"rank {rank} of 2 on host0, which has 2" for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("tasks_per_node", "message"),
    [(1, "give --secret FILE"), (2, "start it once on each host (--ntasks-per-node=1)")],
)
def test_several_tasks_are_no_jobs_of_their_own(
    slurm: SlurmCluster, tasks_per_node: int, message: str
) -> None:
    srun_words = ("srun", "-N2", f"--ntasks-per-node={tasks_per_node}")
    launched = run_to_end(slurm, *srun_words, command(), "run", *worker_words(SHOW_RANK))
    assert launched.process.returncode == 2
    assert message in launched.errors
    assert launched.output == ""


def test_srun_has_the_exit_code_of_a_failing_worker(slurm: SlurmCluster, secret: str) -> None:
    script = f"[ $RANK != 3 ] || exit 7; {WAIT_SCRIPT}"
    words = (command(), "run", "--secret", secret, *worker_words(script))
    launched = run_to_end(slurm, "srun", *ONE_ON_EACH_HOST, *words)
    assert launched.process.returncode == 7
    assert "node 1 (host1): rank 3 (pid " in launched.errors


def test_scancel_ends_the_workers_of_all_hosts(slurm: SlurmCluster, secret: str) -> None:
    words = (command(), "run", "--secret", secret, *worker_words(WAIT_SCRIPT))
    with start_slurm(slurm, "srun", "--job-name=long", *ONE_ON_EACH_HOST, *words) as launched:
        launched.read_until("waits", times=4)
        subprocess.run(slurm.command("scancel", "--name=long"), check=True)
        assert launched.end() != 0
        assert launched.remaining_processes() == []
