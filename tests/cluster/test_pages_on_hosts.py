"""The pages "Running jobs" and "Start ranks by another launcher" are correct: their commands for
several hosts work.

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
from launched import TIMEOUT_SECONDS, command
from page_blocks import ROOT, Block, blocks_of

sys.path.insert(0, str(ROOT / "tools"))
from hosts import Hosts
from mpi_launchers import MPIEXEC, MPIRUN, find_launchers
from mpi_launchers import reason_if_impossible as why_no_mpi
from slurm_cluster import SlurmCluster
from slurm_cluster import reason_if_impossible as why_no_slurm
from ssh_servers import SshServers
from ssh_servers import reason_if_impossible as why_no_servers
from unpacked_packages import overlay_prefix

WORKERS = 8
WORKER = Path(__file__).with_name("small_worker.py")
TRAIN_PROGRAM = (
    "import runpy, sys; sys.argv[1:] = ['make_few_calls']; "
    f"runpy.run_path('{WORKER}', None, '__main__')"
)
PAGES = ("docs/running.md", "docs/howto/launchers.md")
RUN_HERE = [
    block
    for page in PAGES
    for block in blocks_of(ROOT / page)
    if block.runner == f"tests/cluster/{Path(__file__).name}"
]
# For each page: texts by which the tests find the blocks. A line of a block begins with such a
# text.
FIRST_WORDS = {
    PAGES[0]: ("farandole run -H", "# on host0", "srun", "mpirun", "mpiexec"),
    PAGES[1]: ("FARANDOLE_SECRET=job.secret srun", "# on host0", "mpirun", "mpiexec"),
}
# mpirun needs the first variables to run as root. The other variables choose the interface, because
# some interfaces of the hosts lead nowhere.
MPIRUN_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_oob_tcp_if_include": "eth0",
}


def block_with(page: str, word: str) -> Block:
    (matching_block,) = (
        block
        for block in RUN_HERE
        if block.page == page and re.search(rf"^{word}", block.code, re.MULTILINE)
    )
    return matching_block


@dataclass
class Shells:
    """Shells on hosts, like those of a user: train.py is in their folder, and the commands are in
    their PATH."""

    hosts: Hosts
    servers: SshServers
    folder: Path
    path: str

    def start(self, host: int, script: str) -> subprocess.Popen[str]:
        folder = self.folder if host == 0 else self.servers.home(f"host{host}")
        enter_host = overlay_prefix(f"host{host}", find_launchers())
        return self.hosts[host].start(
            *enter_host,
            *("env", "-C", str(folder), "sh", "-ec", script),
            env=environment(self.path) | MPIRUN_VARIABLES,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def environment(path: str) -> dict[str, str]:
    return {"PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def path_with_commands(folder: Path) -> str:
    """Return a PATH in which farandole, python, mpirun and mpiexec are the programs of this
    test."""
    (programs := folder / "bin").mkdir(exist_ok=True)
    command_paths = {"farandole": command(), "python": sys.executable}
    command_paths |= {"mpirun": f"/usr/bin/{MPIRUN}", "mpiexec": f"/usr/bin/{MPIEXEC}"}
    command_paths["torchrun"] = f"{sys.executable} -m torch.distributed.run"
    for name, target in command_paths.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        (programs / name).chmod(0o755)
    return f"{programs}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shells]:
    if reason := why_no_servers() or why_no_mpi():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("page")
    path = path_with_commands(folder)
    (folder / "train.py").write_text(TRAIN_PROGRAM)
    launchers = find_launchers()
    with Hosts(3) as hosts, SshServers(hosts, folder / "ssh", usr_overlay=launchers) as servers:
        for name in servers.names:
            home = servers.home(name)
            (home / ".ssh").mkdir(mode=0o700)
            (home / ".ssh/config").write_text(f"IdentityFile {servers.identity}\n")
            (home / ".bashrc").write_text(f"export PATH={path}\n")
            (home / "train.py").write_text(TRAIN_PROGRAM)
        yield Shells(hosts, servers, folder, path)


@pytest.fixture(autouse=True)
def remove_secret(request: pytest.FixtureRequest) -> None:
    """Remove the secrets of earlier tests, because `farandole secret` never replaces a file."""
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
        text, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, errors
        output += text
    results = re.findall(r"result (\w+)", output)
    assert len(results) == WORKERS
    assert len(set(results)) == 1


def test_each_block_has_a_test() -> None:
    tested_blocks = [
        block_with(page, word) for page, words in FIRST_WORDS.items() for word in words
    ]
    assert sorted(block.place for block in tested_blocks) == sorted(
        block.place for block in RUN_HERE
    )


@pytest.mark.parametrize(
    ("page", "word"),
    [
        (page, word)
        for page, words in FIRST_WORDS.items()
        for word in words
        if word in ("farandole run -H", "mpirun", "mpiexec")
    ],
)
def test_one_command_for_all_hosts(shells: Shells, page: str, word: str) -> None:
    check_end(shells.start(0, block_with(page, word).code))


@pytest.mark.parametrize("page", PAGES)
def test_a_command_on_each_host(shells: Shells, page: str) -> None:
    copy_command, command_on_host0, command_on_host1 = re.split(
        r"^# on host[01]:\n", block_with(page, "# on host0").code, flags=re.M
    )
    copy_process = shells.start(0, copy_command)
    _, errors = copy_process.communicate(timeout=TIMEOUT_SECONDS)
    assert copy_process.returncode == 0, errors
    exports = "".join(re.findall(r"^export .*\n", copy_command, flags=re.M))
    check_end(
        shells.start(1, exports + command_on_host1), shells.start(0, exports + command_on_host0)
    )


@pytest.mark.parametrize("page", PAGES)
def test_srun_starts_the_job_of_the_page(tmp_path: Path, page: str) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    (tmp_path / "train.py").write_text(TRAIN_PROGRAM)
    path = path_with_commands(tmp_path)
    code = block_with(page, r"(FARANDOLE_SECRET=\S+ )?srun").code
    with Hosts(2) as hosts, SlurmCluster(hosts, tmp_path / "slurm") as slurm:
        # The hosts have fewer cores than the ranks that srun starts.
        words = slurm.command("salloc", "-N2", "--overcommit", "sh", "-ec", code)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        check_end(subprocess.Popen(words, cwd=tmp_path, env=environment(path), text=True, **pipes))
