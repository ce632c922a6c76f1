"""Train on Fashion-MNIST: `./dev demo`, and `./dev demo --hosts 2` for several hosts. `./dev demo
--elastic` trains with four workers, two of which are killed and replaced.

The hosts are network namespaces of this machine, each with an SSH server. By default, one
`farandole run` starts the job over ssh. `--via join` starts a `farandole run` on each host instead,
`--via slurm` starts it with srun in a Slurm cluster on these hosts, and `--via mpirun` with Open
MPI. Further options go to the training script.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hosts import Hosts, HostsError, run_in_child_process, run_on_all
from missing_packages import missing_packages
from mpi_launchers import find_launchers, mpirun_words
from mpi_launchers import reason_if_impossible as why_no_mpi
from progress import say
from slurm_cluster import SlurmCluster
from slurm_cluster import reason_if_impossible as why_no_slurm
from ssh_servers import SshServers
from ssh_servers import reason_if_impossible as why_no_servers
from unpacked_packages import overlay_prefix

TOOLS = Path(__file__).resolve().parent
ELASTIC_EXAMPLE = TOOLS.parent / "examples/torch/elastic_fashion_mnist.py"
EXAMPLE = TOOLS.parent / "examples/torch/fashion_mnist.py"
PORT = 4711
StartFunction = Callable[[Hosts, Path, int, list[str], dict[str, str]], list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__, add_help=False)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="per host")
    parser.add_argument("--via", choices=STARTS, default="ssh")
    parser.add_argument("--elastic", action="store_true")
    arguments, rest = parser.parse_known_args()
    if arguments.elastic:
        train_elastically(rest)
    program = ["python", str(EXAMPLE), *rest]
    if arguments.hosts == 1:
        say(f"training on Fashion-MNIST with {arguments.workers} workers")
        sys.stdout.flush()
        os.execvp("farandole", ["farandole", "run", "-n", str(arguments.workers), *program])
    install_packages()
    start = STARTS[arguments.via]
    say(f"training on Fashion-MNIST on {arguments.hosts} hosts, {arguments.workers} workers each")
    return run_in_child_process(lambda: train(start, arguments.hosts, arguments.workers, program))


def train_elastically(rest: list[str]) -> NoReturn:
    say("training on Fashion-MNIST with four workers, two of which kill themselves")
    sys.stdout.flush()
    program = [
        "python",
        str(ELASTIC_EXAMPLE),
        "--batches-per-commit",
        "5",
        "--kill-at",
        "60",
        "150",
    ]
    words = ["farandole", "run", "-n", "4", "--min-workers", "2", *program, *rest]
    os.execvp("farandole", words)


def install_packages() -> None:
    if os.geteuid() != 0:
        raise SystemExit("[dev] several hosts need root, for network namespaces: use sudo")
    if missing := missing_packages(TOOLS / "hosts_packages.txt"):
        say(f"installing Debian packages: {' '.join(missing)}")
        for words in (["update"], ["install", "-y", *missing]):
            process = subprocess.run(["apt-get", "-qq", *words], capture_output=True, check=False)
            if process.returncode != 0:
                say(f"apt-get {words[0]} failed: {process.stderr.decode().strip()}")
    if shutil.which("ip") is None:
        raise SystemExit("[dev] several hosts need the command `ip`: apt-get install iproute2")


def train(start: StartFunction, host_count: int, workers: int, program: list[str]) -> int:
    threads = max(1, len(os.sched_getaffinity(0)) // (host_count * workers))
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
    with tempfile.TemporaryDirectory() as folder, Hosts(host_count) as hosts:
        codes = start(hosts, Path(folder), workers, program, environment)
    if any(codes):
        raise HostsError(f"the exit codes are {codes}")
    say("the job has ended with exit code 0")
    return 0


def start_over_ssh(
    hosts: Hosts, folder: Path, workers: int, program: list[str], environment: dict[str, str]
) -> list[int]:
    if why := why_no_servers():
        raise HostsError(f"{why}; `--via join` needs no SSH server")
    with SshServers(hosts, folder) as servers:
        host_list = ",".join(f"{name}:{workers}" for name in servers.names)
        words = ["farandole", "run", "-H", host_list, "-i", str(servers.identity), *program]
        say(f"host 0: $ {shlex.join(words)}")
        return run_on_all([hosts[0]], [words], env=environment)


def start_on_each_host(
    hosts: Hosts, folder: Path, workers: int, program: list[str], environment: dict[str, str]
) -> list[int]:
    secret = str(folder / "secret")
    subprocess.run(["farandole", "secret", secret], check=True)
    commands = []
    for node in range(len(hosts)):
        words = ["farandole", "run", "--join", hosts[0].endpoint(PORT), "--nodes", str(len(hosts))]
        words += ["--node", str(node), "--secret", secret, "-n", str(workers), *program]
        say(f"host {node}: $ {shlex.join(words)}")
        commands.append(words)
    return run_on_all(hosts, commands, env=environment)


def start_by_srun(
    hosts: Hosts, folder: Path, workers: int, program: list[str], environment: dict[str, str]
) -> list[int]:
    if why := why_no_slurm():
        raise HostsError(f"{why}; `--via join` needs no Slurm")
    secret = str(folder / "secret")
    subprocess.run(["farandole", "secret", secret], check=True)
    words = ["srun", f"--nodes={len(hosts)}", "--ntasks-per-node=1"]
    words += ["farandole", "run", "--secret", secret, "-n", str(workers), *program]
    with SlurmCluster(hosts, folder / "slurm") as slurm:
        say(f"host 0: $ {shlex.join(words)}")
        return [subprocess.run(slurm.command(*words), env=environment, check=False).returncode]


def start_by_mpirun(
    hosts: Hosts, folder: Path, workers: int, program: list[str], environment: dict[str, str]
) -> list[int]:
    if why := why_no_servers() or why_no_mpi():
        raise HostsError(f"{why}; `--via join` needs neither Open MPI nor SSH servers")
    secret = str(folder / "secret")
    subprocess.run(["farandole", "secret", secret], check=True)
    usr_overlay = find_launchers()
    with SshServers(hosts, folder / "ssh", usr_overlay=usr_overlay) as servers:
        words = mpirun_words(servers, "-x", "PATH", "-x", "OMP_NUM_THREADS")
        words += ["farandole", "run", "--join", hosts[0].endpoint(PORT), "--secret", secret]
        words += ["-n", str(workers), *program]
        say(f"host 0: $ {shlex.join(words)}")
        mpirun_command = [*overlay_prefix(servers.names[0], usr_overlay), *words]
        return run_on_all([hosts[0]], [mpirun_command], env=environment)


STARTS: dict[str, StartFunction] = {
    "ssh": start_over_ssh,
    "join": start_on_each_host,
    "slurm": start_by_srun,
    "mpirun": start_by_mpirun,
}

if __name__ == "__main__":
    sys.exit(main())
