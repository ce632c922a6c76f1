"""Classes that report changes of hosts to workers, at Horovod's path."""

from horovod.common.elastic import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
