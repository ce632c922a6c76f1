"""The hosts on which a job runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields

from farandole.errors import CallError
from farandole.jobs.host_discovery import HostDiscovery
from farandole.launcher_command import launcher_command


@dataclass(frozen=True)
class JobHosts:
    """The hosts of a job, as the user names them, and how ssh reaches them. Without hosts, the job
    runs on this host."""

    hosts: str | None = None
    hostfile: str | os.PathLike[str] | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | os.PathLike[str] | None = None
    ssh_accept_new_hosts: bool = False
    discovery: HostDiscovery | None = None

    def are_given(self) -> bool:
        """Return whether hosts are given, or will be discovered. Raise CallError if only settings
        for ssh are given."""
        if self.hosts is not None and not isinstance(self.hosts, str):
            raise CallError(f"hosts must be a string such as 'host1:4,host2:4'; got {self.hosts!r}")
        if self.hosts is not None or self.hostfile is not None or self.discovery is not None:
            return True
        given_settings = [field.name for field in fields(self) if getattr(self, field.name)]
        if given_settings:
            raise CallError(
                f"{given_settings[0]} is given, but no hosts; give hosts or hostfile, too"
            )
        return False

    def flags(self) -> list[str]:
        """Return the flags of `farandole run` for these hosts. If a function of the program finds
        the hosts, call this function for the first time."""
        command = None if self.discovery is None else self.discovery.start()
        values = {
            "--host-discovery-script": command,
            "--hosts": self.hosts,
            "--hostfile": None if self.hostfile is None else os.fspath(self.hostfile),
            "--ssh-port": self.ssh_port,
            "--ssh-identity-file": None
            if self.ssh_identity_file is None
            else os.fspath(self.ssh_identity_file),
        }
        flags = [f"{flag}={value}" for flag, value in values.items() if value is not None]
        return flags + (["--ssh-accept-new-hosts"] if self.ssh_accept_new_hosts else [])

    def addresses(self, n: int | None, environment: Mapping[str, str]) -> list[str]:
        """Return the name of the host of each rank. Without n, all slots of the hosts get a worker.
        If the hosts will be found later, the result is empty.

        Raise CallError if the hosts, the flags for ssh or n are wrong.
        """
        if self.discovery is not None:
            return []
        size = [] if n is None else ["-n", str(n)]
        # Only the command can parse the hosts. With --list-hosts, it starts no workers.
        command = [launcher_command(), "run", "--list-hosts", *self.flags(), *size, "--", "true"]
        listing = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        if listing.returncode != 0:
            raise CallError(f"no worker could be started: {listing.stderr.strip()}")
        rows = [line.rpartition(" ") for line in listing.stdout.splitlines()]
        return [host for host, _, slots in rows for _ in range(int(slots))]
