"""Training states that can be saved and restored, and the loop that continues from them."""

from __future__ import annotations

from typing import Any

from farandole.elastic import HostUpdateResult, ObjectState, State, run_fn


class WorkerNotificationManager:
    """Pass changes of hosts on to listeners such as a State. The launcher never reports a change
    in this way, because State.check_host_updates() asks the launcher."""

    def __init__(self) -> None:
        self._listeners: set[Any] = set()

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Do nothing. Horovod connects to its launcher here."""

    def register_listener(self, listener: Any) -> None:
        """Add an object with a method on_hosts_updated(timestamp, update_res)."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        self._listeners.discard(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Report a change to all listeners."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
