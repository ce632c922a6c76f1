"""The number of workers of a job, and their hosts."""

from __future__ import annotations

from dataclasses import dataclass

from horovod.runner.common.util.hosts import check_hosts, parse_host_file, parse_hosts


@dataclass(frozen=True)
class JobSize:
    """Horovod's arguments for the number of workers and their hosts. Farandole supports only a
    fixed number of workers on this host."""

    workers: int | None
    workers_min: int | None = None
    workers_max: int | None = None
    hosts: str | None = None
    hostfile: str | None = None
    host_discovery_script: str | None = None

    def checked_workers(self) -> int:
        """Return the number of workers. Raises ValueError, or OSError for the host file."""
        if self.workers is None:
            raise ValueError("how many workers? For example `horovodrun -np 2 python train.py`")
        if self.workers < 1:
            raise ValueError(f"{self.workers} workers are asked for; it must be at least 1")
        if self.host_discovery_script is not None:
            raise ValueError(
                "a host discovery script is given, but elastic jobs do not work yet; leave it out"
            )
        for bound in (self.workers_min, self.workers_max):
            if bound not in (None, self.workers):
                raise ValueError(
                    f"{self.workers} workers are asked for, with a bound of {bound}: elastic jobs "
                    "do not work yet; the number of workers is fixed"
                )
        if self.hosts is not None:
            check_hosts(parse_hosts(self.hosts), self.workers)
        if self.hostfile is not None:
            check_hosts(parse_host_file(self.hostfile), self.workers)
        return self.workers
