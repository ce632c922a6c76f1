"""A real Slurm cluster on the hosts of `tools/hosts.py`.

    with Hosts(2) as hosts, SlurmCluster(hosts, folder) as slurm:
        subprocess.run(slurm.command("srun", "-N2", "hostname"))

If programs of Slurm are missing on this machine, their Debian packages are unpacked in build/slurm,
but not installed, so that no service starts. Only the programs that `command()` starts see them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hosts import Host, HostsError
from hosts import reason_if_impossible as why_no_hosts
from unpacked_packages import overlay_prefix, unpack, why_not_enterable

UNPACKED = Path(__file__).resolve().parents[1] / "build/slurm"
PACKAGES = ("munge", "slurm-client", "slurm-wlm-basic-plugins", "slurmctld", "slurmd")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "sinfo")
DEBIAN_SUFFIX = "-wlm"  # installed packages also have links without this suffix
KEY_BYTES = 128
START_SECONDS = 60
POLL_SECONDS = 0.1
LOG_CHARACTERS_MAX = 2000  # the part of a log that an error text shows

CONFIGURATION = """ClusterName=farandole
SlurmctldHost={first_name}({first_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
StateSaveLocation={state}/slurmctld
SlurmctldPidFile={state}/slurmctld.pid
SlurmdSpoolDir={state}/%n
SlurmdPidFile={state}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# The nodes may have more CPUs than this machine.
SlurmdParameters=config_overrides
ReturnToService=2
{address_family}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
{settings}
"""

# The files of control groups are not mounted on the hosts. With version 2 of control groups, slurmd
# does not start without these files. With version 1, it needs them only if a setting above uses
# control groups.
CGROUP_CONFIGURATION = "CgroupPlugin=cgroup/v1\n"


def reason_if_impossible() -> str:
    """Return why hosts of this machine cannot have Slurm, or an empty text if they can.

    The first call may download Slurm.
    """
    if reason := why_no_hosts():
        return reason
    try:
        reason = why_not_enterable(find_slurm())
    except HostsError as failure:
        return str(failure)
    return f"Slurm cannot run here: {reason}" if reason else ""


def program_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def find_slurm() -> Path | None:
    """Return the folder to mount over /usr, or None if all programs of Slurm are installed.

    The folder is build/slurm/usr, which is downloaded if necessary.
    """
    if all(shutil.which(program, path=program_path()) for program in PROGRAMS):
        return None
    if not UNPACKED.exists():
        unpack("Slurm", PACKAGES, UNPACKED, add_short_names, dependencies=True)
    return UNPACKED / "usr"


def add_short_names(unpacked: Path) -> None:
    for program in (unpacked / "usr/sbin").glob(f"*{DEBIAN_SUFFIX}"):
        program.with_name(program.name.removesuffix(DEBIAN_SUFFIX)).symlink_to(program.name)


@dataclass
class Daemon:
    """A daemon of the cluster, and its log file."""

    name: str
    log: Path
    process: subprocess.Popen[str]

    def failure(self, what: str) -> HostsError:
        end = self.log.read_text(errors="replace")[-LOG_CHARACTERS_MAX:]
        return HostsError(f"{self.name} {what}; its log {self.log} ends with:\n{end}")

    def require_running(self) -> None:
        if self.process.poll() is not None:
            raise self.failure(f"ended with exit code {self.process.returncode}")


class SlurmCluster:
    """A Slurm cluster with one node for each host, for root only.

    Entering the `with` block returns when all nodes can run jobs. The controller runs on host 0.
    Programs that start on a host after this know the names of all hosts. Leaving the block ends all
    processes of the hosts.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        *,
        names: Sequence[str] | None = None,
        cpus: int = 2,
        settings: Sequence[str] = (),
    ) -> None:
        """Use `folder` for the configuration and logs.

        The names of the hosts are host0, host1, … by default. Slurm believes that each host has
        `cpus` CPUs. `settings` are further lines of slurm.conf, such as "MpiDefault=pmi2".
        """
        self.hosts = list(hosts)
        self.folder = folder.resolve()
        self.names = list(names or (f"host{number}" for number in range(len(hosts))))
        self.cpus = cpus
        self.settings = list(settings)
        self.configuration = self.folder / "slurm.conf"
        self._state: Path | None = None
        self._over_usr: Path | None = None
        self._daemons: list[Daemon] = []

    def __enter__(self) -> SlurmCluster:
        self._over_usr = find_slurm()
        # The path of a socket has at most 107 characters, and `folder` may be longer.
        self._state = Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            self._write_files(self._state)
            self._start_munge(self._state)
            self._start("slurmctld", 0, "slurmctld", "-D", "-f", str(self.configuration))
            for number, name in enumerate(self.names):
                words = ("slurmd", "-D", "-f", str(self.configuration))
                self._start(f"slurmd-{name}", number, *words)
            self.wait_until_idle()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def command(self, *words: str, host: int = 0) -> list[str]:
        """Return the command that runs `words`, such as `srun -N2 hostname`, on this host."""
        entered = overlay_prefix(self.names[host], self._over_usr)
        setting = f"SLURM_CONF={self.configuration}"
        return self.hosts[host].command(*entered, "env", setting, *words)

    def log(self, daemon: str) -> str:
        """Return the log of a daemon. Its name is munged, slurmctld, slurmd-host0, …"""
        return self._log_file(daemon).read_text(errors="replace")

    def wait_until_idle(self) -> None:
        """Wait until all nodes can run jobs, and none runs one."""
        self._wait_until(self._nodes_are_idle, "the nodes are not ready")

    def _log_file(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"

    def _write_files(self, state: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = state / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(KEY_BYTES))
        addresses = dict(zip(self.names, (host.address for host in self.hosts), strict=True))
        nodes = [
            f"NodeName={name} NodeAddr={address} CPUs={self.cpus}"
            for name, address in addresses.items()
        ]
        only_v6 = "CommunicationParameters=EnableIPv6,DisableIPv4"
        text = CONFIGURATION.format(
            first_name=self.names[0],
            first_address=self.hosts[0].address,
            state=state,
            address_family=only_v6 if self.hosts[0].v6_only else "",
            nodes="\n".join(nodes),
            settings="\n".join(self.settings),
        )
        self.configuration.write_text(text)
        (self.folder / "cgroup.conf").write_text(CGROUP_CONFIGURATION)
        for host in self.hosts:
            host.set_names(addresses)

    def _start(self, daemon: str, host: int, *words: str) -> None:
        log = self._log_file(daemon)
        with open(log, "w") as output:
            process = subprocess.Popen(
                self.command(*words, host=host),
                env={"PATH": program_path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C must not reach the daemons
            )
        self._daemons.append(Daemon(daemon, log, process))

    def _start_munge(self, state: Path) -> None:
        """Start one munged. Programs on all hosts reach it, because its socket is a file."""
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={state}/munge.{name}" for option, name in files.items()]
        # By default, munged refuses a socket below folders such as /tmp.
        self._start("munged", 0, "munged", "--foreground", "--force", *options)
        self._wait_until((state / "munge.socket").exists, "munged has made no socket")

    def _nodes_are_idle(self) -> bool:
        words = self.command("sinfo", "--noheader", "--Node", "--format=%T")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout.split() == ["idle"] * len(self.hosts)

    def _wait_until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            for daemon in self._daemons:
                daemon.require_running()
            if time.monotonic() > deadline:
                raise self._daemons[-1].failure(f"was started last, but {failure}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._daemons[-1].process.wait(POLL_SECONDS)

    def _end(self) -> None:
        for host in self.hosts:
            host.end_processes()
        for daemon in self._daemons:
            daemon.process.wait()
        self._daemons.clear()
        if self._state is not None:
            shutil.rmtree(self._state, ignore_errors=True)
