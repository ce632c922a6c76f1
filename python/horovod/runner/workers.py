"""The prefix and environment variables that Horovod's launcher gives to workers."""

from __future__ import annotations

import socket

PREFIX = "[{rank}]<{stream}>:"  # before each line of a worker


def worker_variables() -> dict[str, str]:
    """Return Horovod's variables for workers, except ranks and sizes. Scripts look at the
    controller."""
    way = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return {"HOROVOD_HOSTNAME": socket.gethostname(), **way}
