"""Hosts for jobs over several hosts, on one machine: network namespaces behind a bridge.

Each host has a network interface of its own, with an IPv4 and an IPv6 address. A host can be made
slower, cut off and healed. All hosts share the files and the process ids of this machine, and its
cores unless `divide_cores()` is called. The module needs root and the commands of
`tools/hosts_packages.txt`.

    with Hosts(2) as hosts:
        for host in hosts:
            host.start("ping", "-c1", hosts[0].address)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ipaddress
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

HOSTS_MAX = 200
ENDING_SECONDS = 10
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1
# `ip netns exec` gives the program its own view of the files.
MOUNT_AND_RUN = 'mount --bind "$0" "$1" && shift && exec "$@"'
V4_NETWORK = ipaddress.ip_network("10.77.0.0/16")  # used only inside the namespaces
V6_NETWORK = ipaddress.ip_network("fd77:6661:7261::/64")


class HostsError(Exception):
    """Hosts cannot be made on this machine, or a command for them has failed."""


def run_command(*words: str) -> str:
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as failure:
        raise HostsError(f"{words[0]}: {failure}") from None
    if result.returncode != 0:
        raise HostsError(f"`{shlex.join(words)}` failed: {result.stderr.strip()}")
    return result.stdout


def reason_if_impossible() -> str:
    """Return why this machine cannot have hosts, or an empty text if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` is missing; install iproute2"
    probe = f"fd-probe-{secrets.token_hex(4)}"
    try:
        run_command("ip", "netns", "add", probe)
    except HostsError as failure:
        return f"network namespaces cannot be made here: {failure}"
    try:
        run_command(
            "ip", "-n", probe, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"
        )
    except HostsError as failure:
        return f"veth interfaces cannot be made here: {failure}"
    finally:
        run_command("ip", "netns", "delete", probe)
    return ""


class Host:
    """One host. Its network interface is eth0."""

    def __init__(self, network: str, number: int, *, v6_only: bool) -> None:
        self.namespace = f"{network}-{number}"
        self.bridge_end = f"to{number}"
        self.switch = f"{network}-switch"
        self.v4 = str(V4_NETWORK[number + 1])
        self.v6 = str(V6_NETWORK[number + 1])
        self.address = self.v6 if v6_only else self.v4
        self.v6_only = v6_only
        self.cores: list[int] = []  # for the programs of this host; empty: all cores
        self.settings = Path("/etc/netns") / self.namespace  # files that replace those of /etc
        self.shown: dict[str, Path] = {}  # path: the folder that programs see there

    def endpoint(self, port: int) -> str:
        return f"[{self.address}]:{port}" if self.v6_only else f"{self.address}:{port}"

    def make(self) -> None:
        run_command("ip", "netns", "add", self.namespace)
        veth = ("type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run_command("ip", "-n", self.switch, "link", "add", self.bridge_end, *veth)
        run_command(
            "ip", "-n", self.switch, "link", "set", self.bridge_end, "master", "switch", "up"
        )
        for name in ("lo", "eth0"):
            self.ip("link", "set", name, "up")
        # Without "nodad", the kernel would check for a second whether another host has the address,
        # which is unusable until then.
        self.ip("address", "add", f"{self.v6}/{V6_NETWORK.prefixlen}", "dev", "eth0", "nodad")
        if not self.v6_only:
            self.ip("address", "add", f"{self.v4}/{V4_NETWORK.prefixlen}", "dev", "eth0")

    def ip(self, *words: str) -> str:
        return run_command("ip", "-n", self.namespace, *words)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs `words` on this host."""
        bound = ["taskset", "--cpu-list", ",".join(map(str, self.cores))] if self.cores else []
        for path, folder in self.shown.items():
            bound += ["sh", "-c", MOUNT_AND_RUN, str(folder), path]
        return ["ip", "netns", "exec", self.namespace, *bound, *words]

    def show(self, folder: Path, path: str) -> None:
        """Show `folder` at `path`, such as "/tmp", to programs that start on this host after this
        call."""
        self.shown[path] = folder

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on this host; the options are those of subprocess.Popen."""
        return subprocess.Popen(self.command(*words), text=True, **options)

    def set_names(self, names: dict[str, str]) -> None:
        """Make these names and addresses known to programs that start on this host after this call.

        A later call also changes the names for all programs that started after the first call.
        """
        self.settings.mkdir(parents=True, exist_ok=True)
        lines = [f"{address} {name}\n" for name, address in names.items()]
        (self.settings / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def set_rate(self, bits_per_second: str, burst: str = "256kb", latency: str = "50ms") -> None:
        """Limit what this host sends, and what it receives, each to a rate such as "1gbit"."""
        limit = ("root", "tbf", "rate", bits_per_second, "burst", burst, "latency", latency)
        run_command("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", *limit)
        run_command("tc", "-n", self.switch, "qdisc", "replace", "dev", self.bridge_end, *limit)

    def set_congestion_control(self, name: str) -> None:
        """Choose how TCP of this host shares the network, such as "reno".

        The kernel allows "reno" and what `net.ipv4.tcp_allowed_congestion_control` lists.
        """
        setting = f"net.ipv4.tcp_congestion_control={name}"
        run_command(*self.command("sysctl", "--quiet", "--write", setting))

    def set_mtu(self, mtu: int) -> None:
        """Set the size of the longest packet on both ends of this host's cable."""
        self.ip("link", "set", "eth0", "mtu", str(mtu))
        run_command("ip", "-n", self.switch, "link", "set", self.bridge_end, "mtu", str(mtu))

    def cut(self) -> None:
        """Drop all packets from and to this host silently, as a broken network does."""
        if shutil.which("nft") is None:
            raise HostsError("the command `nft` is missing; install nftables")
        for hook in ("input", "output"):
            chain = f"{{ type filter hook {hook} priority 0; policy drop; }}"
            self._nft(f"add table inet cut; add chain inet cut {hook} {chain}")
            match = "iif" if hook == "input" else "oif"
            self._nft(f"add rule inet cut {hook} {match} lo accept")

    def heal(self) -> None:
        self._nft("delete table inet cut")

    def unplug(self) -> None:
        """Disconnect the cable, so that the interface has no carrier. Needs no nftables."""
        run_command("ip", "-n", self.switch, "link", "set", self.bridge_end, "down")

    def plug(self) -> None:
        run_command("ip", "-n", self.switch, "link", "set", self.bridge_end, "up")

    def _nft(self, rules: str) -> None:
        run_command(*self.command("nft", rules))

    def processes(self) -> list[int]:
        """List the processes that run on this host."""
        return [int(pid) for pid in run_command("ip", "netns", "pids", self.namespace).split()]

    def end_processes(self) -> None:
        """Kill the processes of this host, and wait for their end. Processes that start during this
        time are killed, too.

        If the kernel cannot end a process within ENDING_SECONDS, do not wait for it any longer.
        """
        deadline = time.monotonic() + ENDING_SECONDS
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the process has ended
                    os.kill(pid, signal.SIGKILL)

    def delete(self) -> None:
        self.end_processes()
        run_command("ip", "netns", "delete", self.namespace)
        shutil.rmtree(self.settings, ignore_errors=True)


class Hosts(Sequence[Host]):
    """Hosts that all reach each other. Leaving the `with` block ends their processes and removes
    the hosts, also after an exception."""

    def __init__(self, count: int, *, v6_only: bool = False) -> None:
        if not 1 <= count <= HOSTS_MAX:
            raise HostsError(f"{count} hosts; there can be 1 to {HOSTS_MAX}")
        # The name is random, so that several runs do not collide, and each run removes only its own
        # hosts.
        self.network = f"fd{os.getpid()}-{secrets.token_hex(3)}"
        self._hosts = [Host(self.network, number, v6_only=v6_only) for number in range(count)]

    def __enter__(self) -> Hosts:
        if reason := reason_if_impossible():
            raise HostsError(reason)
        try:
            switch = f"{self.network}-switch"
            run_command("ip", "netns", "add", switch)
            run_command("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
            run_command("ip", "-n", switch, "link", "set", "switch", "up")
            for host in self._hosts:
                host.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def divide_cores(self) -> None:
        """Give each host cores of its own, for the programs that start after this call.

        The cores of a host are neighbours, so that no two hosts get hardware threads of the same
        core. If there are fewer cores than hosts, some hosts share a core.
        """
        cores, hosts = sorted(os.sched_getaffinity(0), key=core_sort_key), self._hosts
        cores_per_host = len(cores) // len(hosts)
        for number, host in enumerate(hosts):
            first = number * cores_per_host if cores_per_host else number % len(cores)
            host.cores = cores[first : first + max(cores_per_host, 1)]

    def remove(self) -> None:
        """Remove the hosts and end their processes. Ctrl-C does not interrupt this function."""
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
        try:
            self._remove()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _remove(self) -> None:
        existing = set(namespaces())
        for host in self._hosts:
            if host.namespace in existing:
                host.delete()
        if (switch := f"{self.network}-switch") in existing:
            run_command("ip", "netns", "delete", switch)

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)


def core_sort_key(core: int) -> tuple[int, int, int]:
    """Return a sort key by which the hardware threads of a core are neighbours."""
    topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    socket, on_socket = (
        int((topology / name).read_text()) for name in ("physical_package_id", "core_id")
    )
    return socket, on_socket, core


def namespaces() -> list[str]:
    return [line.split()[0] for line in run_command("ip", "netns", "list").splitlines() if line]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run a command on several hosts of this machine; in it, {node}, {endpoint} and "
        "{first} stand for the number of the host, HOST:PORT of the first host, and its address."
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--v6-only", action="store_true")
    parser.add_argument("--rate", help='such as "1gbit"')
    parser.add_argument("--port", type=int, default=4711)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()

    def run() -> int:
        with Hosts(arguments.hosts, v6_only=arguments.v6_only) as hosts:
            for host in hosts:
                if arguments.rate:
                    host.set_rate(arguments.rate)
            fields = {"{endpoint}": hosts[0].endpoint(arguments.port), "{first}": hosts[0].address}
            commands = []
            for node in range(len(hosts)):
                node_fields = fields | {"{node}": str(node)}
                commands.append([with_fields(word, node_fields) for word in arguments.command])
            return int(any(run_on_all(hosts, commands)))

    return run_in_child_process(run)


def with_fields(word: str, fields: dict[str, str]) -> str:
    for field, value in fields.items():
        word = word.replace(field, value)
    return word


def run_in_child_process(action: Callable[[], int]) -> int:
    """Run `action` in a child that gets SIGTERM if this process is killed. Return the action's
    result.

    So if the action uses `with Hosts(…)`, the hosts are removed even if this process gets SIGKILL.
    """
    parent = os.getpid()
    child = os.fork()
    if child != 0:
        for number in ENDING_SIGNALS:
            signal.signal(number, lambda caught, _frame: os.kill(child, caught))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.setsid()  # Ctrl-C reaches only the parent, which forwards it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:
            code = action()
    except HostsError as failure:
        print(f"hosts: {failure}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hosts: interrupted", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_on_all(
    hosts: Sequence[Host], commands: Sequence[Sequence[str]], **options: Any
) -> list[int]:
    """Run one command on each host, show their output line by line, and return their exit codes.

    The options are those of subprocess.Popen. A signal such as Ctrl-C goes to the commands, and
    this function waits for their end.
    """
    started: list[subprocess.Popen[str]] = []

    def forward(number: int, _frame: object) -> None:
        for process in started:
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in ENDING_SIGNALS}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        for host, words in zip(hosts, commands, strict=True):
            started.append(host.start(*words, **pipes, start_new_session=True, **options))
        with ThreadPoolExecutor(max_workers=len(started)) as pool:
            for node, process in enumerate(started):
                pool.submit(show_lines, f"host {node} | ", process)
        codes = [process.wait() for process in started]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for node, code in enumerate(codes):
        if code != 0:
            print(f"hosts: host {node} ended with exit code {code}", file=sys.stderr)
    return codes


def show_lines(prefix: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(prefix + line, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
