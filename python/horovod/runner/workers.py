"""What workers are given as Horovod gives it, by `horovodrun` and by run()."""

from __future__ import annotations

import socket

PREFIX = "[{rank}]<{stream}>:"  # of their lines


def worker_variables() -> dict[str, str]:
    """What workers get beside their ranks; scripts ask which of Horovod's ways they are on."""
    way = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    return {"HOROVOD_HOSTNAME": socket.gethostname(), **way}
