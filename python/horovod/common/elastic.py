"""State that is kept, restored and sent to all, and the loop that does so."""

from __future__ import annotations

from typing import Any

from farandole.elastic import ObjectState, State, run_fn


class NotificationManager:
    """Whom to tell when hosts come and go. While jobs have a fixed size, none does."""

    def __init__(self) -> None:
        self.listeners: set[Any] = set()

    def init(self) -> None:
        """Horovod asks its launcher here; there is nothing to ask for."""

    def register_listener(self, listener: Any) -> None:
        self.listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        self.listeners.discard(listener)


notification_manager = NotificationManager()

__all__ = ["NotificationManager", "ObjectState", "State", "notification_manager", "run_fn"]
