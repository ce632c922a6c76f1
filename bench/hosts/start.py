#!/usr/bin/env python3
"""Measure how long a job needs to start over ssh: from the command to the first barrier.

The hosts are network namespaces of this machine, each with an SSH server. Each round starts the job
once in each way: `farandole run -H` with a C++ worker and with a Python worker, and Open MPI's
mpirun with a program in C++. The result is the ratio to Open MPI in the same round.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from hosts import Host, Hosts, HostsError, run_in_child_process  # noqa: E402
from progress import say  # noqa: E402
from ssh_servers import SshServers, reason_if_impossible  # noqa: E402
from unpacked_packages import overlay_prefix  # noqa: E402

MPIRUN, COMPILER = "mpirun.openmpi", "mpicxx.openmpi"
BUILD = ROOT / "build/dev"
PYTHON_WORKER = """
import time
import farandole.torch as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks met at {time.monotonic():.6f}")
"""


def our_command(servers: SshServers, workers: int) -> list[str]:
    hosts = ",".join(f"{name}:{workers}" for name in servers.names)
    launcher = str(BUILD / "apps/farandole/farandole")
    return [launcher, "run", "-H", hosts, "-i", str(servers.identity)]


def mpi_command(hosts: Hosts, servers: SshServers, workers: int, folder: Path) -> list[str]:
    if shutil.which(MPIRUN) is None or shutil.which(COMPILER) is None:
        raise HostsError(f"{MPIRUN} or {COMPILER} is missing; install libopenmpi-dev")
    program = folder / "mpi_start"
    options = ("-std=c++20", "-O3", "-DOMPI_SKIP_MPICXX")
    source = ROOT / "bench/peers/mpi_start.cc"
    subprocess.run([COMPILER, *options, str(source), "-o", str(program)], check=True)
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"{name} slots={workers}\n" for name in servers.names))
    words = [MPIRUN, "--allow-run-as-root", "--hostfile", str(hostfile), "--bind-to", "none"]
    words += ["--mca", "plm_rsh_agent", f"ssh -i {servers.identity}"]
    words += ["--mca", "mpi_yield_when_idle", "1"]
    for framework in ("btl", "oob"):
        words += ["--mca", f"{framework}_tcp_if_include", "eth0"]
    return [*words, str(program)]


def start_time(host: Host, words: list[str], ranks: int) -> float:
    """Return the seconds from the start of the command to its first barrier."""
    begin = time.monotonic()
    with host.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=300)
    match = re.search(r"(\d+) ranks met at ([\d.]+)", output)
    if process.returncode != 0 or match is None or int(match[1]) != ranks:
        raise HostsError(f"exit code {process.returncode}: {output}\n{errors}")
    return float(match[2]) - begin


def measure(host_count: int, workers: int, rounds: int) -> int:
    if why := reason_if_impossible():
        raise HostsError(why)
    ranks = host_count * workers
    with (
        tempfile.TemporaryDirectory() as name,
        Hosts(host_count) as hosts,
        SshServers(hosts, Path(name)) as servers,
    ):
        ways = {
            "Open MPI": mpi_command(hosts, servers, workers, Path(name)),
            "farandole, C++": [*our_command(servers, workers), str(BUILD / "bench/start_bench")],
            "farandole, Python": [
                *our_command(servers, workers),
                sys.executable,
                "-c",
                PYTHON_WORKER,
            ],
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, words in ways.items():
                times[way].append(
                    start_time(hosts[0], [*overlay_prefix("host0", None), *words], ranks)
                )
            say(f"round {number + 1}: " + ", ".join(f"{w} {t[-1]:.2f} s" for w, t in times.items()))
    print(f"start of {ranks} workers on {host_count} hosts, median of {rounds} rounds")
    for way, seconds in times.items():
        pairs = zip(times["Open MPI"], seconds, strict=True)
        ratio = statistics.median(mpi / ours for mpi, ours in pairs)
        print(f"{way:18} {statistics.median(seconds):6.2f} s   {ratio:5.2f} x as fast as Open MPI")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--workers", type=int, default=16, help="on each host")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    return run_in_child_process(
        lambda: measure(arguments.hosts, arguments.workers, arguments.rounds)
    )


if __name__ == "__main__":
    sys.exit(main())
