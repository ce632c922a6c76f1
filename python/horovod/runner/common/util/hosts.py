"""Parse the hosts of a job from `-H host:slots,…` or from a host file."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r"(?P<name>[^\s:]+|\[[^\s\]]+\])(:(?P<slots>\d+))?")
_LINE = re.compile(r"(?P<name>\S+?)(\s+slots\s*=\s*(?P<slots>\d+)|:(?P<number>\d+))?")


@dataclass(frozen=True)
class HostInfo:
    hostname: str
    slots: int | None = None  # the largest number of workers on this host; None: no limit


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse a list such as "host1:2,host2:4". Raises ValueError for any other text."""
    return [_host(entry.strip(), _ENTRY) for entry in hosts_string.split(",")]


def parse_host_file(path: str) -> list[HostInfo]:
    """Parse a file with lines such as "host1 slots=2"; a # begins a comment. Raises ValueError, or
    OSError if the file cannot be read."""
    lines = [line.partition("#")[0].strip() for line in Path(path).read_text().splitlines()]
    return [_host(line, _LINE) for line in lines if line]


def _host(text: str, pattern: re.Pattern[str]) -> HostInfo:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" is not a host; write it as in localhost:2')
    fields = found.groupdict()
    slots = fields["slots"] or fields.get("number")
    return HostInfo(fields["name"], int(slots) if slots else None)


def is_this_host(name: str) -> bool:
    own = socket.gethostname()
    return name in ("localhost", "127.0.0.1", "::1", "[::1]", own, own.partition(".")[0]) or (
        name.partition(".")[0] == own.partition(".")[0] and name == socket.getfqdn()
    )


def check_hosts(hosts: Iterable[HostInfo], workers: int) -> None:
    """Raise ValueError unless this host is the only one and has slots for that many workers."""
    listed = list(hosts)
    others = sorted({host.hostname for host in listed if not is_this_host(host.hostname)})
    if others:
        raise ValueError(
            f"jobs over several hosts do not work yet: {', '.join(others)} is not this host "
            f"({socket.gethostname()}); name this one alone, as in localhost:{workers}"
        )
    slots = [host.slots for host in listed]
    room = sum(number for number in slots if number is not None)
    if None not in slots and room < workers:
        raise ValueError(
            f"{workers} workers are asked for, and the hosts have {room} slots; "
            f"say localhost:{workers}, or fewer workers"
        )
