"""Test the Slurm cluster, and record which variables Slurm 22.05 gives to programs.

A program that `srun` starts gets SLURM_PROCID and SLURM_STEP_* of its step. The others:

- A batch script of `sbatch` runs once, on the first host. It has SLURM_PROCID=0, SLURM_NODEID=0,
  SLURM_LOCALID=0, SLURM_NNODES and, with --ntasks-per-node, SLURM_NTASKS, as if it were task 0 of
  a step. It has no SLURM_STEP_*, except if `sbatch` itself ran in a step: then the script inherits
  the variables of that step.
- The program of `salloc` runs on the host of `salloc`. It has SLURM_JOB_ID, SLURM_NNODES and
  SLURM_JOB_NODELIST, but neither SLURM_PROCID nor SLURM_STEP_*.
- If the cluster has LaunchParameters=use_interactive_step, the shell of `salloc` runs in a step of
  its own on the first host: SLURM_STEP_ID=4294967290, SLURM_STEP_NUM_TASKS=1, SLURM_PROCID=0.
- `srun --mpi=pmi2`, which may be the default of a cluster, adds PMI_RANK and PMI_SIZE.
- If the cluster has MpiParams=ports=…, `srun` adds SLURM_STEP_RESV_PORTS.
- `srun --distribution=arbitrary` may start task 0 on a host that is not the first one in
  SLURM_STEP_NODELIST.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, HostsError, namespaces
from slurm_cluster import SlurmCluster, reason_if_impossible

TIMEOUT_SECONDS = 300
# Write less than 1024 bytes, in one write, because srun mixes longer lines of different tasks.
NAMES = "(PROCID|NODEID|LOCALID|NNODES|NTASKS|JOB_NODELIST|SRUN_COMM_HOST|STEP_.*)"
SHOW = f"echo $(env | grep -E '^SLURM_{NAMES}=') PMI_RANK=$PMI_RANK NAME=$(hostname)"


@pytest.fixture(scope="module")
def require_slurm() -> None:
    if reason := reason_if_impossible():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def slurm(require_slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("a cluster")
    with Hosts(2) as hosts, SlurmCluster(hosts, folder) as cluster:
        yield cluster


def output(words: list[str], text: str | None = None) -> str:
    done = subprocess.run(
        words,
        input=text or "",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def variables(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def by_task(shown: str) -> list[dict[str, str]]:
    """Return the variables of each task of a step."""
    return sorted(map(variables, shown.splitlines()), key=lambda task: int(task["SLURM_PROCID"]))


def step_variables(program: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in program.items() if name.startswith("SLURM_STEP")}


def run_batch(slurm: SlurmCluster, folder: Path, *before: str) -> dict[str, str]:
    """Submit a batch script for two hosts; the words `before` come before `sbatch`."""
    script, result = folder / "batch", folder / "result"
    os.mkfifo(result)
    script.write_text(f"#!/bin/sh\n{SHOW} > {result}\n")
    options = ("-N2", "--ntasks-per-node=1", "--output=/dev/null")
    output(slurm.command(*before, "sbatch", *options, str(script)))
    return variables(output(["cat", str(result)]))


def test_srun_starts_one_task_on_each_host(slurm: SlurmCluster) -> None:
    words = slurm.command("srun", "-N2", "--ntasks-per-node=1", "sh", "-c", SHOW)
    tasks = by_task(output(words))
    assert [task["NAME"] for task in tasks] == ["host0", "host1"]
    for number, task in enumerate(tasks):
        assert task["SLURM_PROCID"] == task["SLURM_NODEID"] == str(number)
        assert task["SLURM_LOCALID"] == "0"
        assert task["SLURM_STEP_ID"] == "0"
        assert task["SLURM_STEP_NUM_NODES"] == "2"
        assert task["SLURM_STEP_NUM_TASKS"] == "2"
        assert task["SLURM_STEP_NODELIST"] == "host[0-1]"
        assert task["SLURM_STEP_TASKS_PER_NODE"] == "1(x2)"
        assert "SLURM_STEP_RESV_PORTS" not in task
        assert task["PMI_RANK"] == ""


def test_srun_divides_tasks_among_the_hosts(slurm: SlurmCluster) -> None:
    tasks = by_task(output(slurm.command("srun", "-n3", "sh", "-c", SHOW)))
    assert [task["NAME"] for task in tasks] == ["host0", "host0", "host1"]
    assert {task["SLURM_STEP_NUM_TASKS"] for task in tasks} == {"3"}
    assert {task["SLURM_STEP_TASKS_PER_NODE"] for task in tasks} == {"2,1"}


def test_another_host_starts_a_job(slurm: SlurmCluster) -> None:
    assert output(slurm.command("srun", "-w", "host0", "hostname", host=1)) == "host0\n"


def test_an_arbitrary_distribution_starts_task_zero_elsewhere(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("host1\nhost0\n")
    setting = f"SLURM_HOSTFILE={tmp_path / 'hosts'}"
    step = ("srun", "-n2", "--distribution=arbitrary", "sh", "-c", SHOW)
    tasks = by_task(output(slurm.command("env", setting, *step)))
    assert [task["NAME"] for task in tasks] == ["host1", "host0"]
    assert {task["SLURM_STEP_NODELIST"] for task in tasks} == {"host[0-1]"}


def test_a_batch_script_is_no_step(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = run_batch(slurm, tmp_path)
    assert step_variables(script) == {}
    assert script["NAME"] == "host0"
    assert script["SLURM_PROCID"] == script["SLURM_NODEID"] == script["SLURM_LOCALID"] == "0"
    assert script["SLURM_NTASKS"] == script["SLURM_NNODES"] == "2"
    assert script["SLURM_JOB_NODELIST"] == "host[0-1]"


def test_a_batch_script_inherits_the_step_that_submits_it(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = run_batch(slurm, tmp_path, "srun", "-n1")
    assert script["SLURM_NNODES"] == "2"
    assert script["SLURM_STEP_NUM_TASKS"] == "1"
    assert script["SLURM_STEP_NODELIST"] == "host0"


def test_salloc_starts_a_program_that_is_no_step(slurm: SlurmCluster) -> None:
    salloc = ("salloc", "-N2", "--ntasks-per-node=1", "sh", "-c")
    program = variables(output(slurm.command(*salloc, SHOW)))
    assert step_variables(program) == {}
    assert "SLURM_PROCID" not in program
    assert program["SLURM_NTASKS"] == program["SLURM_NNODES"] == "2"
    tasks = by_task(output(slurm.command(*salloc, 'srun sh -c "$0"', SHOW)))
    assert [task["NAME"] for task in tasks] == ["host0", "host1"]
    assert {task["SLURM_STEP_NUM_TASKS"] for task in tasks} == {"2"}


def test_other_settings_and_ipv6_only(require_slurm: None, tmp_path: Path) -> None:
    settings = (
        "MpiDefault=pmi2",
        "MpiParams=ports=12000-12099",
        "LaunchParameters=use_interactive_step",
        'InteractiveStepOptions="--interactive --preserve-env sh"',  # no terminal
    )
    with (
        Hosts(2, v6_only=True) as hosts,
        SlurmCluster(
            hosts, tmp_path, names=["left", "right"], cpus=3, settings=settings
        ) as cluster,
    ):
        tasks = by_task(output(cluster.command("srun", "-n6", "sh", "-c", SHOW)))
        assert [task["NAME"] for task in tasks] == ["left"] * 3 + ["right"] * 3
        assert [task["PMI_RANK"] for task in tasks] == list("012345")
        assert {task["SLURM_SRUN_COMM_HOST"] for task in tasks} == {hosts[0].v6}
        assert all(task["SLURM_STEP_RESV_PORTS"].startswith("120") for task in tasks)
        shell = variables(output(cluster.command("salloc", "-N2"), f"{SHOW}\n"))
        assert shell["SLURM_NNODES"] == "2"
        assert shell["SLURM_STEP_ID"] == "4294967290"
        assert shell["SLURM_STEP_NUM_TASKS"] == "1"


def test_nothing_is_left_at_the_end(require_slurm: None, tmp_path: Path) -> None:
    installed = shutil.which("srun")
    # The parent of the first `sleep` ends, so this `sleep` is no longer a child of Slurm.
    script = "(setsid sleep 1000 &) >&- 2>&-; echo started; sleep 1000"
    with Hosts(2) as hosts:
        with SlurmCluster(hosts, tmp_path) as cluster:
            words = cluster.command("srun", "-N2", "sh", "-c", script)
            client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert client.stdout is not None
            assert [client.stdout.readline() for _ in hosts] == ["started\n"] * 2
            assert "launch task StepId=" in cluster.log("slurmd-host1")
            (state,) = re.findall(r"StateSaveLocation=(\S+)/", cluster.configuration.read_text())
            assert Path(state).is_dir()
        assert [host.processes() for host in hosts] == [[], []]
        assert not Path(state).exists()
        with client:
            assert client.wait(TIMEOUT_SECONDS) != 0
    assert not {host.namespace for host in hosts} & set(namespaces())
    # This test is one of the programs that must not see the unpacked programs.
    assert shutil.which("srun") == installed


def test_a_daemon_that_cannot_start_shows_its_log(require_slurm: None, tmp_path: Path) -> None:
    with Hosts(1) as hosts:
        with (
            # All daemons read the wrong setting and end. The error names the first one that ends.
            pytest.raises(HostsError, match=r"(?s)slurm\S+ ended with.*ends with:.*NoSuchSetting"),
            SlurmCluster(hosts, tmp_path, settings=["NoSuchSetting=1"]),
        ):
            pass
        assert hosts[0].processes() == []
