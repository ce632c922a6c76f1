"""Training states that can be saved and restored, and the loop that continues from them."""

from __future__ import annotations

from typing import Any

from farandole.elastic import ObjectState, State, run_fn


class NotificationManager:
    """A list of listeners for changes of hosts. Jobs have a fixed size, so none is ever called."""

    def __init__(self) -> None:
        self.listeners: set[Any] = set()

    def init(self) -> None:
        """Do nothing. Horovod connects to its launcher here."""

    def register_listener(self, listener: Any) -> None:
        self.listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        self.listeners.discard(listener)


notification_manager = NotificationManager()

__all__ = ["NotificationManager", "ObjectState", "State", "notification_manager", "run_fn"]
