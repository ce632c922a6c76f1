"""Open MPI over the hosts of tools/hosts.py: the commands that start it, with several settings.

mpirun starts on the first host. It reaches the others through a script instead of ssh. The hosts
share the files and the memory of this machine, so the script gives each host a different name. Open
MPI needs this, because it uses the name of the host for its shared memory.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from hosts import Hosts

MPIRUN, COMPILER = "mpirun.openmpi", "mpicxx.openmpi"
SOURCE = Path(__file__).resolve().parents[1] / "peers/mpi_between_hosts.cc"
INTERFACE = "eth0"
TRIAL_SECONDS_MAX = 60
# mpirun does not know which cores a host has. So an option tells it not to bind the ranks to cores.
# If ranks share a core, a second option makes waiting ranks yield their core.
NOT_BOUND = ("--bind-to", "none")
SHARED_CORES = ("--mca", "mpi_yield_when_idle", "1")
# For each setting: the options of mpirun, and whether the program sums in place. HAN sums inside
# each host first. In version 4.1, it crashes if a program sums in place
# (https://github.com/open-mpi/ompi/pull/11488).
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "tuned": ((), "in-place"),
    "HAN": (("--mca", "coll_han_priority", "100"), "out-of-place"),
}


def why_missing() -> str:
    """Return which part of Open MPI is missing, or an empty text if it is complete."""
    for program in (MPIRUN, COMPILER):
        if shutil.which(program) is None:
            return f"{program} is missing; install openmpi-bin and libopenmpi-dev"
    return ""


def commands(hosts: Hosts, ranks: int, folder: Path) -> dict[str, list[str]]:
    """Return a command for each setting that works here, with `ranks` ranks on each host.

    The commands run on the first host; BYTES and CALLS must follow them.
    """
    program = folder / "mpi_between_hosts"
    options = ("-std=c++20", "-O3", "-DNDEBUG", "-DOMPI_SKIP_MPICXX")
    subprocess.run([COMPILER, *options, str(SOURCE), "-o", str(program)], check=True)
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"{host.v4} slots={ranks}\n" for host in hosts))
    start = [MPIRUN, "--allow-run-as-root", "--hostfile", str(hostfile), *NOT_BOUND]
    start += () if has_own_cores(hosts, ranks) else SHARED_CORES
    start += ["--mca", "plm_rsh_agent", str(write_agent(hosts, folder))]
    start += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
    start += ["--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", INTERFACE]
    if not runs_on_all(hosts, ranks, start):
        return {}
    commands_by_setting = {
        name: [*start, *words, str(program), place] for name, (words, place) in SETTINGS.items()
    }
    return {
        name: words
        for name, words in commands_by_setting.items()
        if setting_works(hosts, name, words)
    }


def has_own_cores(hosts: Hosts, ranks: int) -> bool:
    """Return whether each of the `ranks` ranks of a host has a core of its own."""
    return all(len(host.cores) >= ranks for host in hosts)


def write_agent(hosts: Hosts, folder: Path) -> Path:
    """Write the script `agent ADDRESS COMMAND…`, which runs a command on the host at an address."""
    agent = folder / "agent"
    cases = "".join(
        f"  {host.v4}) host={host.namespace} on_host='{shlex.join(host.command())}' ;;\n"
        for host in hosts
    )
    agent.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}  *) echo "$1: not a host" >&2; exit 1 ;;\nesac\nshift\n'
        'exec $on_host unshare --uts sh -c "hostname $host; $*"\n'
    )
    agent.chmod(0o700)
    return agent


def runs_on_all(hosts: Hosts, ranks: int, start: list[str]) -> bool:
    """Return whether the command `start` starts `ranks` programs on each host. If not, print a
    message."""
    command = hosts[0].command(*start, "hostname")
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TRIAL_SECONDS_MAX
    )
    if sorted(Counter(process.stdout.split()).values()) == [ranks] * len(hosts):
        return True
    print(
        f"Open MPI is left out, because it did not start {ranks} programs on each of {len(hosts)} "
        f"hosts, but on these: {process.stdout.split()}. {process.stderr[-1000:]}",
        f"  $ {shlex.join(command)}",
        sep="\n",
        file=sys.stderr,
    )
    return False


def setting_works(hosts: Hosts, name: str, words: list[str]) -> bool:
    """Return whether a short run of a setting succeeds. If not, print a message."""
    command = hosts[0].command(*words, "8", "1", "1048576", "1")
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=TRIAL_SECONDS_MAX)
    except subprocess.SubprocessError as failure:
        errors = (getattr(failure, "stderr", None) or b"").decode(errors="replace")
        print(f"Open MPI, {name}, is left out: {errors[-1000:] or failure}", file=sys.stderr)
        print(f"  $ {shlex.join(command)}", file=sys.stderr)
        return False
    return True
