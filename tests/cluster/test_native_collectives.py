"""`farandole run --tf-config` and `--jax`: programs that use the collectives of TensorFlow or JAX
instead of ours."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import SshHosts, make_ssh_hosts
from launched import CommandRun, run

FLAGS = {"tensorflow": "--tf-config", "jax": "--jax"}
PROGRAM = str(Path(__file__).with_name("native_collectives.py"))
WITHOUT_NOTICES = {
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
# JAX's Gloo listens at the address that belongs to the host's name, but our hosts share one name.
# So this program gives a worker the address of its host as host name.
WITH_OWN_HOST_NAME = (
    "unshare",
    "--uts",
    "sh",
    "-c",
    "address=$(ip -4 -o address show eth0 | sed 's/.* inet //; s,/.*,,'); "
    'hostname "$address"; exec "$@"',
    "sh",
)
SHOW_TF_CONFIG = 'echo "$TF_CONFIG"'
SHOW_JAX = (
    "echo $JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID $OMPI_MCA_orte_hnp_uri "
    "$OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK"
)
each_framework = pytest.mark.parametrize(
    "framework",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
            ),
        )
        for name in FLAGS
    ],
)


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(2, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def lines_of(job: CommandRun) -> list[str]:
    assert job.process.returncode == 0, job.output + job.errors
    return sorted(job.output.splitlines())


def sum_lines(size: int) -> list[str]:
    total = float(sum(range(10, 10 + size)))
    return [f"[{rank}] worker {rank} of {size}: {total}" for rank in range(size)]


def tf_configs(lines: list[str]) -> list[dict[str, object]]:
    return [json.loads(line[line.index("]") + 1 :]) for line in lines]


@each_framework
def test_a_program_on_one_host(framework: str) -> None:
    words = ("-n", "2", FLAGS[framework], sys.executable, PROGRAM, framework)
    job = run("run", *words, environment=WITHOUT_NOTICES)
    assert lines_of(job) == sum_lines(2)
    assert "init()" not in job.errors


@each_framework
def test_a_program_on_two_hosts(ssh_hosts: SshHosts, framework: str) -> None:
    hosts = f"{ssh_hosts.hosts[0].v4}:1,host1:2"
    words = ("-H", hosts, FLAGS[framework], *WITH_OWN_HOST_NAME, sys.executable, PROGRAM, framework)
    assert lines_of(ssh_hosts.run(*words, environment=WITHOUT_NOTICES)) == sum_lines(3)


def test_tf_config_lists_all_workers_in_the_order_of_ranks() -> None:
    # The launcher must replace a value that it inherits.
    inherited_config = '{"cluster": {"worker": ["old:1"]}, "task": {"type": "worker", "index": 0}}'
    words = ("-n", "3", "--tf-config", "sh", "-c", SHOW_TF_CONFIG)
    job = run("run", *words, environment={"TF_CONFIG": inherited_config})
    configs = tf_configs(lines_of(job))
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": rank} for rank in range(3)
    ]
    clusters = [config["cluster"] for config in configs]
    assert clusters == [clusters[0]] * 3
    workers = clusters[0]["worker"]
    assert len(set(workers)) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", worker) for worker in workers)


def test_tf_config_over_two_hosts(ssh_hosts: SshHosts) -> None:
    own_address, other_address = (ssh_hosts.hosts[node].v4 for node in range(2))
    job = ssh_hosts.run("-H", f"{own_address}:2,host1:1", "--tf-config", "sh", "-c", SHOW_TF_CONFIG)
    configs = tf_configs(lines_of(job))
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    clusters = [config["cluster"] for config in configs]
    assert clusters == [clusters[0]] * 3
    hosts = [worker.rsplit(":", 1)[0] for worker in clusters[0]["worker"]]
    assert hosts == [own_address, own_address, other_address]


def test_variables_for_jax() -> None:
    job = run("run", "-n", "2", "--jax", "sh", "-c", SHOW_JAX, environment=WITHOUT_NOTICES)
    lines = lines_of(job)
    address = lines[0].split()[1]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    placeholder = "started-by-farandole-run"
    assert lines == [f"[{r}] {address} 2 {r} {placeholder} 2 {r} {r}" for r in range(2)]


def test_other_workers_get_no_such_variables() -> None:
    job = run("run", "-n", "1", "sh", "-c", f"{SHOW_TF_CONFIG}; {SHOW_JAX}")
    assert lines_of(job) == ["[0] ", "[0] "]


@pytest.mark.parametrize("flag", FLAGS.values())
def test_nodes_with_other_flags_are_an_error(
    ssh_hosts: SshHosts, tmp_path: Path, flag: str
) -> None:
    secret = tmp_path / "secret"
    assert run("secret", str(secret)).process.returncode == 0
    words = ("--join", ssh_hosts.hosts[0].endpoint(4711), "--nodes", "2", "--secret", str(secret))
    executable, *arguments = ssh_hosts.words(
        *words, "--node", "0", "-n", "1", flag, "echo", "started"
    )
    with CommandRun(*arguments, program=executable) as node_0:
        executable, *arguments = ssh_hosts.words(
            *words, "--node", "1", "-n", "1", "echo", "started", driver=1
        )
        with CommandRun(*arguments, program=executable) as node_1:
            assert (node_0.end(), node_1.end()) == (2, 2)
    for job in (node_0, node_1):
        assert "started\n" not in job.output
        assert re.search(
            f"node 0 on .+ was started with {flag}, but node 1 on .+ without it; start all nodes "
            "with the same flags\n",
            job.errors,
        ), job.errors


def test_a_job_of_farandole_with_the_variables_for_jax() -> None:
    """--jax sets variables of Open MPI. init() must not treat them as variables that mpirun has
    set."""
    program = "import farandole; farandole.init(); print(farandole.rank(), farandole.size())"
    if importlib.util.find_spec("farandole") is None:
        pytest.skip("farandole is not installed")
    job = run("run", "-n", "2", "--jax", "--tf-config", sys.executable, "-c", program)
    assert lines_of(job) == ["[0] 0 2", "[1] 1 2"]
