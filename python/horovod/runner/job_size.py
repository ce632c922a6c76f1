"""The number of workers of a job, and their hosts."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.runner.common.util.hosts import (
    HostInfo,
    check_slots,
    is_this_host,
    parse_host_file,
    parse_hosts,
)


@dataclass(frozen=True)
class JobSize:
    """Horovod's arguments for the number of workers and their hosts."""

    workers: int | None
    workers_min: int | None = None  # how many workers an elastic job needs at least
    workers_max: int | None = None
    hosts: str | None = None
    hostfile: str | None = None
    host_discovery_script: str | None = None

    def checked_workers(self) -> int:
        """Return the number of workers with which the job starts. Raises ValueError if the numbers
        of workers are missing or contradict each other."""
        if self.workers is None:
            raise ValueError("how many workers? For example `horovodrun -np 2 python train.py`")
        if self.workers < 1:
            raise ValueError(f"{self.workers} workers are asked for; it must be at least 1")
        if self.host_discovery_script is not None:
            if self.workers_max is not None and self.workers_max < self.workers:
                raise ValueError(
                    f"{self.workers} workers are asked for, and at most {self.workers_max}; the "
                    "maximum must not be smaller"
                )
        elif self.workers_max not in (None, self.workers):
            raise ValueError(
                f"{self.workers} workers are asked for, and at most {self.workers_max}: without "
                "--host-discovery-script, a job never has more workers than at its start; give "
                "both the same number"
            )
        minimum = self.workers_min
        if minimum is not None and not 1 <= minimum <= self.workers:
            raise ValueError(
                f"{self.workers} workers are asked for, and at least {minimum}: the minimum must "
                f"be between 1 and {self.workers}"
            )
        return self.workers

    @property
    def is_elastic(self) -> bool:
        return self.workers_min is not None or self.host_discovery_script is not None

    def elastic_flags(self) -> list[str]:
        """Return the flags of `farandole run` that make a job elastic; an empty list if the job is
        not elastic."""
        return ["--min-workers", str(self.workers_min or self.workers)] if self.is_elastic else []

    def host_flags(self) -> list[str]:
        """Return the flags of `farandole run` for the hosts; an empty list if this host is the only
        one.

        Raises ValueError if the hosts are wrong or have too few slots, or OSError if the host file
        cannot be read. Call checked_workers() before.
        """
        hosts: list[HostInfo] = []
        flags: list[str] = []
        if self.host_discovery_script is not None:
            max_flags = [] if self.workers_max is None else ["--max-workers", str(self.workers_max)]
            return ["--host-discovery-script", self.host_discovery_script, *max_flags]
        if self.hosts is not None:
            hosts, flags = parse_hosts(self.hosts), ["-H", self.hosts]
        elif self.hostfile is not None:
            hosts, flags = parse_host_file(self.hostfile), ["--hostfile", self.hostfile]
        if not all(is_this_host(host.hostname) for host in hosts):
            return flags
        check_slots(hosts, self.workers or 1)
        return []
