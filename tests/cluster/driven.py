"""Runs jobs over several hosts with `farandole run -H`, which starts a launcher on each host over
ssh.

The hosts are network namespaces, each with an sshd. All hosts share the files and the process ids
of this machine. The hosts are host0, host1, …, and the driver runs on host0 by default.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from launched import TIMEOUT_SECONDS, CommandRun, command

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Host, Hosts, run_command
from ssh_servers import SshServers, reason_if_impossible

# Without this variable, node 0 prints a notice about the number of threads.
THREADS = {"OMP_NUM_THREADS": "1"}
POLL_SECONDS = 0.02
# A launcher prints such lines if the processes on another host need long to start or to end.
WAITING_NOTICES = (
    "farandole: all workers of this node have ended; waiting for those of the other nodes",
    "farandole: waiting for node ",
)


def command_line_of(pid: int) -> list[str]:
    """Return the command line of a process; it is empty if the process has ended."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode(errors="replace") for word in words]
    return []


def parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 if the process has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class SshHosts:
    """Hosts with SSH servers, and functions to start jobs and find processes on them."""

    def __init__(self, hosts: Hosts, servers: SshServers) -> None:
        self.hosts, self.servers = hosts, servers
        self.listeners = {servers.pid(name) for name in servers.names}

    def words(self, *words: str, driver: int = 0, folder: Path | None = None) -> list[str]:
        """Return the command line that runs `farandole run WORDS...` on the driver's host."""
        enter_folder = ["env", "-C", str(folder)] if folder else []
        host_flags = {"-H", "--hostfile", "--host-discovery-script"}
        key = ["-i", str(self.servers.identity)] if host_flags & set(words) else []
        run_words = ("run", *key, *words)
        return self.hosts[driver].command(*enter_folder, command(), *run_words)

    def start(
        self,
        *words: str,
        driver: int = 0,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> CommandRun:
        """Start a job; the words are those after `farandole run`."""
        program, *arguments = self.words(*words, driver=driver, folder=folder)
        return CommandRun(*arguments, program=program, environment=THREADS | (environment or {}))

    def run(
        self,
        *words: str,
        driver: int = 0,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> CommandRun:
        """Run a job to its end, and check that no process of it is left on any host."""
        with self.start(*words, driver=driver, folder=folder, environment=environment) as job:
            job.end()
            self.wait_for_end_of(job)
        return job

    def processes(self, node: int) -> dict[int, list[str]]:
        """Return the command lines of the processes of a host, except its SSH server."""
        pids = set(self.hosts[node].processes()) - self.listeners
        return {pid: words for pid in pids if (words := command_line_of(pid))}

    def wait_for_end_of(self, job: CommandRun) -> None:
        """Wait until no process of the job is left on any host."""
        deadline = time.monotonic() + TIMEOUT_SECONDS / 2
        nodes = range(len(self.hosts))
        while remaining := {pid: w for node in nodes for pid, w in self.processes(node).items()}:
            assert time.monotonic() < deadline, f"left: {remaining}\n{job.output}{job.errors}"
            time.sleep(POLL_SECONDS)
        assert job.remaining_processes() == []

    def find(self, node: int, *texts: str, parents: Sequence[int] = ()) -> list[int]:
        """List the processes of a host whose command line has all these parts."""
        return sorted(
            pid
            for pid, words in self.processes(node).items()
            if all(part in " ".join(words) for part in texts)
            and (not parents or parent_of(pid) in parents)
        )

    def foreground_processes(self, node: int) -> list[int]:
        """List the foreground processes of the launchers on a host, which the driver has started
        over ssh or directly."""
        agent_pids = [
            pid
            for pid, words in self.processes(node).items()
            if words[1:] == ["agent"] and words[0].endswith("/farandole")
        ]
        return sorted(pid for pid in agent_pids if parent_of(pid) not in agent_pids)

    def agents(self, node: int) -> list[int]:
        """List the agents of the launchers on a host."""
        return self.find(node, "/farandole agent", parents=self.foreground_processes(node) or [-1])

    @contextmanager
    def replace_file(self, node: int, path: Path, replacement: Path) -> Iterator[None]:
        """Let the next ssh sessions on a host see another file or folder at this path."""
        enter_mounts = ("nsenter", "--mount", "--target", str(self._listener(node)))
        run_command(*enter_mounts, "mount", "--bind", str(replacement), str(path))
        try:
            yield
        finally:
            run_command(*enter_mounts, "umount", str(path))

    @contextmanager
    def hide_folder(self, node: int, folder: Path) -> Iterator[None]:
        """Let the next ssh sessions on a host see an empty folder at this path."""
        enter_mounts = ("nsenter", "--mount", "--target", str(self._listener(node)))
        run_command(*enter_mounts, "mount", "-t", "tmpfs", "tmpfs", str(folder))
        try:
            yield
        finally:
            run_command(*enter_mounts, "umount", str(folder))

    def path_on_host(self, node: int, path: Path) -> Path:
        """A host may see another file at `path` than this process. Return the path by which this
        process can open that file."""
        return Path(f"/proc/{self._listener(node)}/root") / path.relative_to("/")

    def login_count(self, node: int) -> int:
        """Count the connections that the SSH server of a host has accepted."""
        return self.servers.log(f"host{node}").count("Accepted publickey")

    def _listener(self, node: int) -> int:
        return self.servers.pid(f"host{node}")


@contextmanager
def make_ssh_hosts(
    count: int, folder: Path, *, v6_only: bool = False, port: int = 22
) -> Iterator[SshHosts]:
    """Make hosts, or skip the test with the reason why they are impossible here."""
    if reason := reason_if_impossible():
        pytest.skip(reason)
    with Hosts(count, v6_only=v6_only) as hosts, SshServers(hosts, folder, port=port) as servers:
        yield SshHosts(hosts, servers)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


__all__ = ["Host", "SshHosts", "command_line_of", "kill", "make_ssh_hosts", "parent_of"]
