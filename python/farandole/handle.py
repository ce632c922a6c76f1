"""Handles of calls in flight, and the life of the memory that the engine borrows for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from farandole import core

Result = TypeVar("Result")

# Calls whose handle the program dropped before they were done, and what the engine borrows.
_orphans: dict[tuple[core.Engine, int], object] = {}


class Handle(Generic[Result]):
    """One call. `borrowed` stays alive until the engine is done with it, also when the program
    drops the handle or an exception ends a wait. `finish` turns the outcome into the result.
    """

    __slots__ = ("_borrowed", "_engine", "_error", "_finish", "_number", "_result")

    def __init__(
        self,
        engine: core.Engine,
        number: int,
        borrowed: object,
        finish: Callable[[core.Engine, int], Result],
    ) -> None:
        self._engine: core.Engine | None = engine
        self._number = number
        self._borrowed = borrowed
        self._finish: Callable[[core.Engine, int], Result] | None = finish
        self._result: Result | None = None
        self._error: Exception | None = None

    def poll(self) -> bool:
        """Is the call done? Then wait() returns at once."""
        return self._engine is None or self._engine.poll(self._number)

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        if self._engine is not None:
            self._engine.wait(self._number)
            self._take()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _take(self) -> None:
        engine, finish = self._engine, self._finish
        self._engine = self._finish = None
        if engine is None or finish is None:
            return  # another thread has waited, too
        try:
            self._result = finish(engine, self._number)
        except Exception as error:
            self._error = error
        self._borrowed = None

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.forked:
            _orphans[engine, self._number] = self._borrowed
            release_orphans()


def release_orphans() -> None:
    """Lets go of the memory of dropped calls that are done by now.

    Their outcomes are not taken: that would free their automatic names, at another moment on each
    rank.
    """
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
