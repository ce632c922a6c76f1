"""Parse the hosts of a job from `-H host:slots,…` or from a host file, and give ranks to slots."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_ENTRY_PATTERN = re.compile(r"(?P<name>[^\s:]+|\[[^\s\]]+\])(:(?P<slots>\d+))?")
_LINE_PATTERN = re.compile(r"(?P<name>\S+?)(\s+slots\s*=\s*(?P<slots>\d+)|:(?P<number>\d+))?")


@dataclass(frozen=True)
class HostInfo:
    hostname: str
    slots: int | None = None  # the largest number of workers on this host; None: no limit

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parse "host:2". Raises ValueError for any other text."""
        return _parse_host(host_string.strip(), _ENTRY_PATTERN)


@dataclass(frozen=True)
class SlotInfo:
    """A place for one worker: its host, and the three ranks of the worker. Each size is the number
    of workers among which the rank with the same prefix is counted."""

    hostname: str
    rank: int
    local_rank: int  # the rank among the workers of its host
    cross_rank: int  # the rank among those workers of all hosts that have this local_rank
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse a list such as "host1:2,host2:4". Raises ValueError for any other text."""
    return [HostInfo.from_string(entry) for entry in hosts_string.split(",")]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Return the names in "host1:2,host2:4", and the number of slots of each name."""
    names_and_slots = [(host.hostname, _slots_of(host)) for host in parse_hosts(hosts)]
    return [name for name, _ in names_and_slots], dict(names_and_slots)


def parse_host_file(path: str) -> list[HostInfo]:
    """Parse a file with lines such as "host1 slots=2"; a # begins a comment. Raises ValueError, or
    OSError if the file cannot be read."""
    lines = [line.partition("#")[0].strip() for line in Path(path).read_text().splitlines()]
    return [_parse_host(line, _LINE_PATTERN) for line in lines if line]


def parse_host_files(filename: str) -> str:
    """Return the hosts of a host file in the form "host1:2,host2:4", which `horovod.run` takes."""
    return ",".join(f"{host.hostname}:{_slots_of(host)}" for host in parse_host_file(filename))


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Give ranks to the slots, host after host, and return the slots by rank.

    At most max_num_proc slots are used; if it is None, all slots are used. Raises ValueError if
    there are fewer than min_num_proc slots.
    """
    slot_counts = [_slots_of(host) for host in hosts]
    total = sum(slot_counts)
    size = total if max_num_proc is None else min(total, max_num_proc)
    if size < min_num_proc:
        raise ValueError(
            f"{min_num_proc} workers are asked for, and the hosts have {total} slots; ask "
            "for fewer workers, or give more slots"
        )
    local_sizes: list[int] = []  # the number of workers on each host
    for slots in slot_counts:
        local_sizes.append(min(slots, size - sum(local_sizes)))
    slot_positions = [
        (host, local_rank) for host, n in enumerate(local_sizes) for local_rank in range(n)
    ]
    return [
        SlotInfo(
            hostname=hosts[host].hostname,
            rank=rank,
            local_rank=local_rank,
            cross_rank=sum(n > local_rank for n in local_sizes[:host]),
            size=size,
            local_size=local_sizes[host],
            cross_size=sum(n > local_rank for n in local_sizes),
        )
        for rank, (host, local_rank) in enumerate(slot_positions)
    ]


def _slots_of(host: HostInfo) -> int:
    if host.slots is None:
        raise ValueError(f'"{host.hostname}" has no number of slots; write it as in localhost:2')
    return host.slots


def _parse_host(text: str, pattern: re.Pattern[str]) -> HostInfo:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a host; write it as in localhost:2')
    fields = match.groupdict()
    slots = fields["slots"] or fields.get("number")
    return HostInfo(fields["name"], int(slots) if slots else None)


def is_this_host(name: str) -> bool:
    own_name = socket.gethostname()
    return name in (
        "localhost",
        "127.0.0.1",
        "::1",
        "[::1]",
        own_name,
        own_name.partition(".")[0],
    ) or (name.partition(".")[0] == own_name.partition(".")[0] and name == socket.getfqdn())


def check_slots(hosts: Iterable[HostInfo], workers: int) -> None:
    """Raise ValueError unless the hosts have slots for that many workers."""
    slot_counts = [host.slots for host in hosts]
    total = sum(count for count in slot_counts if count is not None)
    if slot_counts and None not in slot_counts and total < workers:
        raise ValueError(
            f"{workers} workers are asked for, and the hosts have {total} slots; "
            f"give localhost:{workers}, or ask for fewer workers"
        )
