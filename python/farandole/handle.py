"""Handles of calls in flight, and the life of the memory that the engine borrows for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from farandole import core
from farandole.errors import FarandoleError

Result = TypeVar("Result")


class PreparedCall(Generic[Result]):
    """What a call needs from its start to its end. `borrowed` keeps the memory that the engine
    works on; `finish` turns the outcome into the result."""

    __slots__ = ("borrowed", "call", "finish")

    def __init__(
        self, call: core.Call, borrowed: object, finish: Callable[[core.Engine, int], Result]
    ) -> None:
        self.call = call
        self.borrowed = borrowed
        self.finish = finish


# Held by who takes the outcome of a call: the engine gives it only once. One for all handles, since
# a thousand locks are a thousand objects for the garbage collector.
_taking = threading.RLock()

# Calls whose handle the program dropped before they were done, and what the engine borrows.
_orphans: dict[tuple[core.Engine, int], object] = {}


class Handle(Generic[Result]):
    """One call, made before it is submitted. What it borrows stays alive until the engine is done
    with it, also when the program drops the handle or an exception ends a wait.

    Horovod's handles are numbers, with which scripts do what these objects can, too: keep them in
    lists, in sets and as keys of dictionaries, and hand them to poll() and synchronize(). A dropped
    number would leave its result behind; a dropped object does not.

    Give a name to calls whose handle may be dropped or whose wait may be interrupted on some ranks
    only: a name that the engine chose stays in use until somebody has waited for the call, so the
    ranks would come to different ones.
    """

    __slots__ = ("_call", "_engine", "_error", "_prepared", "_result")

    def __init__(self, engine: core.Engine, prepared: PreparedCall[Result]) -> None:
        if _orphans:
            release_orphans()
        self._engine: core.Engine | None = engine
        self._call = prepared.call
        self._prepared: PreparedCall[Result] | None = prepared
        self._result: Result | None = None
        self._error: BaseException | None = None

    def poll(self) -> bool:
        """Is the call done? Then wait() returns at once."""
        engine = self._engine
        return engine is None or engine.poll(self._call.handle)

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        engine = self._engine
        if engine is not None:
            engine.wait(self._call.handle)
            self._take(engine)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def take(self) -> Result:
        """Like wait(), but forgets the result: a later call returns None. An error stays."""
        result = self.wait()
        self._result = None
        return result

    def _take(self, engine: core.Engine) -> None:
        with _taking:
            if self._prepared is None:
                return  # another thread has waited, too
            try:
                self._result = self._prepared.finish(engine, self._call.handle)
            except BaseException as error:  # also Ctrl-C: the engine gives an outcome only once
                self._error = error
            self._prepared = None
            self._engine = None  # last: from now on others use the result

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        prepared = getattr(self, "_prepared", None)
        if engine is None or prepared is None or engine.forked:
            return
        if number := self._call.handle:  # 0: submit() has raised
            engine.drop(number)
            _orphans[engine, number] = prepared
            release_orphans()


class BatchHandle(Generic[Result]):
    """The calls of one batch; the result is the list of theirs."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[Handle[Result]]) -> None:
        self._handles = handles

    def poll(self) -> bool:
        """Are all of them done? Then wait() returns at once."""
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> list[Result]:
        """The results, when all are there; or what went wrong first in the order of the batch."""
        failures: list[FarandoleError] = []
        results: list[Result] = []
        for handle in self._handles:
            try:
                results.append(handle.wait())
            except FarandoleError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results

    def take(self) -> list[Result]:
        """Like wait(), but forgets the results: later there is None in place of each."""
        results = self.wait()
        for handle in self._handles:
            handle.take()
        return results


def release_orphans() -> None:
    """Lets go of the memory of dropped calls that are done by now."""
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
