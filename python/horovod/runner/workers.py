"""The prefix and environment variables that Horovod's launcher gives to workers."""

from __future__ import annotations

import socket

PREFIX = "[{rank}]<{stream}>:"  # before each line of a worker


def worker_variables() -> dict[str, str]:
    """Return the variables besides the ranks. Scripts read the controller from them."""
    way = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return {"HOROVOD_HOSTNAME": socket.gethostname(), **way}
