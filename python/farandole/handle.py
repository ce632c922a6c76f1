"""Handles of calls in flight, and the life of the memory that the engine borrows for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from farandole import core

Result = TypeVar("Result")

# Calls whose handle the program dropped before they were done, and what the engine borrows.
_orphans: dict[tuple[core.Engine, int], object] = {}


class Handle(Generic[Result]):
    """One call. `borrowed` stays alive until the engine is done with it, also when the program
    drops the handle or an exception ends a wait. `finish` turns the outcome into the result.

    Give a name to calls whose handle may be dropped or whose wait may be interrupted on some ranks
    only: the engine keeps an automatic name as long as nobody has waited for the call, so the ranks
    would come to different ones.
    """

    __slots__ = ("_borrowed", "_engine", "_error", "_finish", "_lock", "_number", "_result")

    def __init__(
        self,
        engine: core.Engine,
        number: int,
        borrowed: object,
        finish: Callable[[core.Engine, int], Result],
    ) -> None:
        if _orphans:
            release_orphans()
        self._lock = threading.Lock()
        self._engine: core.Engine | None = engine
        self._number = number
        self._borrowed = borrowed
        self._finish = finish
        self._result: Result | None = None
        self._error: BaseException | None = None

    def poll(self) -> bool:
        """Is the call done? Then wait() returns at once."""
        engine = self._engine
        return engine is None or engine.poll(self._number)

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        engine = self._engine
        if engine is not None:
            engine.wait(self._number)
            self._take(engine)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _take(self, engine: core.Engine) -> None:
        with self._lock:
            if self._engine is None:
                return  # another thread has waited, too
            try:
                self._result = self._finish(engine, self._number)
            except BaseException as error:  # also Ctrl-C: the engine gives an outcome only once
                self._error = error
            self._borrowed = None
            self._engine = None  # last: from now on others use the result

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
