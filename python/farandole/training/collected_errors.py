"""Continue after an error, and raise it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CollectedErrors:
    """The errors of actions that must all be tried, because other ranks wait for these actions."""

    def __init__(self) -> None:
        self.found: list[Exception] = []

    def attempt(self, action: Callable[[], Any]) -> bool:
        try:
            action()
        except Exception as error:
            self.found.append(error)
            return False
        return True

    def pop_first(self) -> Exception:
        """Return the first error and remove it from this object. If it remained here, the error,
        the frames in its traceback and this object would form a cycle, and only the garbage
        collector could free the optimizer."""
        return self.found.pop(0)
