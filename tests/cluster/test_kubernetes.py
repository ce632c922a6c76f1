"""The files of examples/kubernetes: their fields, and what the commands of their pods do.

The tests use no cluster: network namespaces stand for the pods. The namespaces have only those
names and variables that Kubernetes and the MPI Operator give to pods.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from launched import TIMEOUT_SECONDS, command, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Host, Hosts
from hosts import reason_if_impossible as why_no_hosts
from ssh_servers import SshServers
from ssh_servers import reason_if_impossible as why_no_servers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/kubernetes"
WHY_NO_HOSTS = why_no_hosts()
SHOW_RANK = (
    'echo "rank $RANK of $WORLD_SIZE, number $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $GROUP_RANK"'
)
needs_hosts = pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def job_around(specification: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "train"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": specification}


def jobs_in(name: str) -> list[dict[str, Any]]:
    """Return the jobs of a file. A job for an operator is a part of the operator's own resource."""
    if name == "job_set.yaml":
        (job_set,) = documents(name)
        return [job_around(job["template"]["spec"]) for job in job_set["spec"]["replicatedJobs"]]
    if name == "mpi_job.yaml":
        (mpi_job,) = documents(name)
        pods = [replica["template"] for replica in mpi_job["spec"]["mpiReplicaSpecs"].values()]
        return [job_around({"template": pod}) for pod in pods]
    return [document for document in documents(name) if document["kind"] == "Job"]


def program_words(name: str, number: int = 0) -> list[str]:
    """Return the words of a container's command before the user's program."""
    pod = jobs_in(name)[number]["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    return list(words[: words.index("python")])


@pytest.mark.parametrize("name", [file.name for file in sorted(EXAMPLES.glob("*.yaml"))])
def test_the_files_have_valid_fields(name: str) -> None:
    version = kubernetes_validate.latest_version()
    core_documents = [part for part in documents(name) if part["apiVersion"] in ("v1", "batch/v1")]
    for misspelled in [*core_documents, *jobs_in(name)]:
        kubernetes_validate.validate(misspelled, version, strict=True)
    misspelled = job_around({"template": {"spec": {"containerz": []}}})
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelled, version, strict=True)


@pytest.fixture
def pods() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        for host in hosts:
            host.set_names({})  # the names are not known when the pods start
        yield hosts


def start_pod(host: Host, words: list[str], **variables: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.defpath} | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return host.start(*words, env=environment, **pipes)


@needs_hosts
@pytest.mark.parametrize("name", ["indexed_job.yaml", "job_set.yaml"])
def test_the_pods_of_an_indexed_job_meet(name: str, pods: Hosts, tmp_path: Path) -> None:
    # A volume of a Secret: each file is a link to a link.
    volume = tmp_path / "secret"
    (volume / "..1").mkdir(parents=True)
    assert run("secret", str(volume / "..1/job.secret")).process.returncode == 0
    (volume / "..1/job.secret").chmod(0o400)
    (volume / "..data").symlink_to("..1")
    (volume / "job.secret").symlink_to("..data/job.secret")
    words = program_words(name)
    assert words[0] == "farandole"
    words = [word.replace("/secret/", f"{volume}/") for word in (command(), *words[1:])]
    words += ["sh", "-c", SHOW_RANK]
    # Pod 1 starts before pod 0.
    pod_1 = start_pod(pods[1], words, JOB_COMPLETION_INDEX="1")
    assert pod_1.stderr is not None
    assert "waiting for node 0 of 2" in pod_1.stderr.readline()
    pod_0 = start_pod(pods[0], words, JOB_COMPLETION_INDEX="0")
    assert pod_0.stderr is not None
    assert "the name is not known" in pod_0.stderr.readline()
    (endpoint,) = (word for word in words if word.startswith("--join="))
    endpoint_match = re.fullmatch(r"--join=([\w.-]+):\d+", endpoint)
    assert endpoint_match is not None
    for host in pods:
        host.set_names({endpoint_match[1]: pods[0].address})
    lines = []
    for pod in (pod_0, pod_1):
        output, errors = pod.communicate(timeout=TIMEOUT_SECONDS)
        assert pod.returncode == 0, errors
        lines += output.splitlines()
    assert sorted(lines) == [
        f"[{rank}] rank {rank} of 8, number {rank % 4} of 4, node {rank // 4}" for rank in range(8)
    ]


@needs_hosts
def test_the_launcher_of_an_mpi_job_starts_the_workers(tmp_path: Path) -> None:
    if why := why_no_servers():
        pytest.skip(why)
    workers = [f"train-worker-{number}.train.default.svc" for number in range(2)]
    with (
        Hosts(3) as hosts,
        SshServers(hosts, tmp_path, names=[*workers, "train-launcher"]) as servers,
    ):
        keys = servers.home("train-launcher") / ".ssh"
        keys.mkdir(mode=0o700, parents=True)
        shutil.copy(servers.identity, keys / "id_ed25519")
        hostfile = tmp_path / "hostfile"
        hostfile.write_text("".join(f"{name} slots=4\n" for name in workers))
        words = program_words("mpi_job.yaml")
        words = [word.replace("/etc/mpi/hostfile", str(hostfile)) for word in words]
        launcher = start_pod(hosts[2], [command(), *words[1:], "sh", "-c", SHOW_RANK])
        output, errors = launcher.communicate(timeout=TIMEOUT_SECONDS)
    assert launcher.returncode == 0, errors
    assert sorted(output.splitlines()) == [
        f"[{rank}] rank {rank} of 8, number {rank % 4} of 4, node {rank // 4}" for rank in range(8)
    ]
