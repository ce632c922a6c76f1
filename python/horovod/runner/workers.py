"""The prefix and environment variables that Horovod's launcher gives to workers."""

from __future__ import annotations

import socket

OUTPUT_PREFIX = "[{rank}]<{stream}>:"  # printed before each line of a worker's output


def worker_variables(has_host_flags: bool = False) -> dict[str, str]:
    """Return the environment variables that Horovod sets for workers, except ranks and sizes. Some
    scripts read HOROVOD_CONTROLLER. Over several hosts, the name of the host is left out."""
    transport = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return transport if has_host_flags else {"HOROVOD_HOSTNAME": socket.gethostname(), **transport}
