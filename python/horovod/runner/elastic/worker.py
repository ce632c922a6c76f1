"""How workers are told of changes of hosts, at Horovod's path."""

from horovod.common.elastic import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
