"""mpirun of Open MPI and mpiexec of MPICH, on the hosts of `tools/hosts.py`.

    usr_overlay = find_launchers()
    with Hosts(2) as hosts, SshServers(hosts, folder, usr_overlay=usr_overlay) as servers:
        command = hosts[0].command(*overlay_prefix("host0", usr_overlay), *mpirun_words(servers))
        subprocess.run([*command, "hostname"])

If one of them is missing on this machine, their Debian packages are unpacked in build/mpi, but not
installed. Only programs that are started in this way see the unpacked packages.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hosts import HostsError
from ssh_servers import SshServers
from unpacked_packages import unpack, why_not_enterable

UNPACKED = Path(__file__).resolve().parents[1] / "build/mpi"
PACKAGES = ("openmpi-bin", "mpich")
MPIRUN, MPIEXEC = "mpirun.openmpi", "mpiexec.hydra"


def reason_if_impossible() -> str:
    """Return why the launchers cannot run here, or an empty text if they can.

    The first call may download them.
    """
    try:
        reason = why_not_enterable(find_launchers())
    except HostsError as failure:
        return str(failure)
    return f"Open MPI and MPICH cannot run here: {reason}" if reason else ""


def find_launchers() -> Path | None:
    """Return the folder to mount over /usr, or None if both launchers are installed.

    The folder is build/mpi/usr, which is downloaded if necessary.
    """
    if all(shutil.which(program) for program in (MPIRUN, MPIEXEC)):
        return None
    if not UNPACKED.exists():
        unpack("an MPI launcher", PACKAGES, UNPACKED, lambda _: None, dependencies=True)
    return UNPACKED / "usr"


def mpirun_words(servers: SshServers, *options: str, per_host: int = 1) -> list[str]:
    """Return the words of mpirun that start the command after them `per_host` times on each host.

    mpirun reaches the other hosts over ssh. `options` are further options of mpirun.
    """
    hosts = ",".join(f"{name}:{per_host}" for name in servers.names)
    words = [MPIRUN, "--allow-run-as-root", "--host", hosts]
    words += ["--map-by", f"ppr:{per_host}:node", "--bind-to", "none"]
    # Use eth0 only: the other interfaces of a host do not reach the other hosts.
    words += ["--mca", "oob_tcp_if_include", "eth0"]
    words += ["--mca", "plm_rsh_args", f"-i {servers.identity} -p {servers.port}"]
    return [*words, *options]
