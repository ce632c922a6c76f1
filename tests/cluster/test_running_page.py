"""The page "Running jobs" is correct: its commands for several hosts start such jobs.

The hosts are network namespaces: host0, on which the commands are typed, host1 and host2. ssh,
Slurm, mpirun and mpiexec are real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched import HANG_SECONDS, command
from page_blocks import ROOT, Block, blocks_of

sys.path.insert(0, str(ROOT / "tools"))
from hosts import Hosts
from mpi_launchers import MPIEXEC, MPIRUN, find_launchers
from mpi_launchers import why_impossible as why_no_mpi
from slurm_cluster import SlurmCluster
from slurm_cluster import why_impossible as why_no_slurm
from ssh_servers import SshServers
from ssh_servers import why_impossible as why_no_servers
from unpacked_packages import words_to_enter

WORKERS = 8
WORKER = Path(__file__).with_name("small_worker.py")
TRAIN = f"import runpy, sys; sys.argv[1:] = ['short']; runpy.run_path('{WORKER}', None, '__main__')"
RUN_HERE = [
    block
    for block in blocks_of(ROOT / "docs/running.md")
    if block.runner == f"tests/cluster/{Path(__file__).name}"
]
# mpirun does not like to run as root, and the hosts have interfaces that do not reach the others.
FOR_MPIRUN = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_oob_tcp_if_include": "eth0",
}


def block_with(word: str) -> Block:
    (found,) = (block for block in RUN_HERE if re.search(rf"^{word}", block.code, re.MULTILINE))
    return found


@dataclass
class Shells:
    """Shells on hosts, as a user has them: in a folder with train.py, and with the commands."""

    hosts: Hosts
    servers: SshServers
    folder: Path
    path: str

    def start(self, host: int, script: str) -> subprocess.Popen[str]:
        folder = self.folder if host == 0 else self.servers.home(f"host{host}")
        entered = words_to_enter(f"host{host}", find_launchers())
        return self.hosts[host].start(
            *entered,
            *("env", "-C", str(folder), "sh", "-ec", script),
            env=environment(self.path) | FOR_MPIRUN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def environment(path: str) -> dict[str, str]:
    return {"PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def path_with_commands(folder: Path) -> str:
    """Return a PATH in which farandole, python, mpirun and mpiexec are those of this test."""
    (programs := folder / "bin").mkdir(exist_ok=True)
    targets = {"farandole": command(), "python": sys.executable}
    targets |= {"mpirun": f"/usr/bin/{MPIRUN}", "mpiexec": f"/usr/bin/{MPIEXEC}"}
    for name, target in targets.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        (programs / name).chmod(0o755)
    return f"{programs}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shells]:
    if reason := why_no_servers() or why_no_mpi():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("page")
    path = path_with_commands(folder)
    (folder / "train.py").write_text(TRAIN)
    launchers = find_launchers()
    with Hosts(3) as hosts, SshServers(hosts, folder / "ssh", over_usr=launchers) as servers:
        for name in servers.names:
            home = servers.home(name)
            (home / ".ssh").mkdir(mode=0o700)
            (home / ".ssh/config").write_text(f"IdentityFile {servers.identity}\n")
            (home / ".bashrc").write_text(f"export PATH={path}\n")
            (home / "train.py").write_text(TRAIN)
        yield Shells(hosts, servers, folder, path)


@pytest.fixture(autouse=True)
def without_secret(request: pytest.FixtureRequest) -> None:
    """`farandole secret` never replaces a file."""
    if "shells" in request.fixturenames:
        shells = request.getfixturevalue("shells")
        for folder in (
            shells.folder,
            *(shells.servers.home(name) for name in shells.servers.names),
        ):
            (folder / "job.secret").unlink(missing_ok=True)


def check_end(*processes: subprocess.Popen[str]) -> None:
    """Check that all ranks have ended with the same result."""
    output = ""
    for process in processes:
        text, errors = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0, errors
        output += text
    results = re.findall(r"result (\w+)", output)
    assert len(results) == WORKERS
    assert len(set(results)) == 1


def test_each_block_has_a_test() -> None:
    words = ("farandole run -H", "# on host0", "srun", "mpirun", "mpiexec")
    assert sorted(block_with(word).line for word in words) == [block.line for block in RUN_HERE]


@pytest.mark.parametrize("word", ["farandole run -H", "mpirun", "mpiexec"])
def test_one_command_for_all_hosts(shells: Shells, word: str) -> None:
    check_end(shells.start(0, block_with(word).code))


def test_a_command_on_each_host(shells: Shells) -> None:
    first, on_host0, on_host1 = re.split(
        r"^# on host[01]:\n", block_with("# on host0").code, flags=re.M
    )
    check_copied = shells.start(0, first)
    _, errors = check_copied.communicate(timeout=HANG_SECONDS)
    assert check_copied.returncode == 0, errors
    check_end(shells.start(1, on_host1), shells.start(0, on_host0))


def test_srun(tmp_path: Path) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    (tmp_path / "train.py").write_text(TRAIN)
    path = path_with_commands(tmp_path)
    with Hosts(2) as hosts, SlurmCluster(hosts, tmp_path / "slurm") as slurm:
        words = slurm.command("salloc", "-N2", "sh", "-ec", block_with("srun").code)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        check_end(subprocess.Popen(words, cwd=tmp_path, env=environment(path), text=True, **pipes))
