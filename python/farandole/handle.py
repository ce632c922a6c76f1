"""Handles of calls in flight, and the life of the memory that the engine borrows for them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from farandole import core
from farandole.errors import FarandoleError

Result = TypeVar("Result")


class PreparedCall(Generic[Result]):
    """What a call needs from its start to its end. `borrowed` keeps the memory that the engine
    works on; `finish` turns the outcome into the result; `engine` is set by who starts it."""

    __slots__ = ("borrowed", "call", "engine", "finish")

    engine: core.Engine

    def __init__(
        self, call: core.Call, borrowed: object, finish: Callable[[core.Engine, int], Result]
    ) -> None:
        self.call = call
        self.borrowed = borrowed
        self.finish = finish


# What each handle stands for: its call, and when that is over, the result and the error. Not in the
# handles, since an attribute of a number costs more time than all that is here.
_calls: dict[int, PreparedCall[Any] | tuple[Any, BaseException | None]] = {}
_batches: dict[int, Sequence[Handle[Any]]] = {}
_numbers = itertools.count(1)
_NOTHING = (None, None)

# Held by who takes the outcome of a call: the engine gives it only once. One for all handles, since
# a thousand locks are a thousand objects for the garbage collector.
_taking = threading.RLock()

# Calls whose handle the program dropped before they were done, and what the engine borrows.
_orphans: dict[tuple[core.Engine, int], object] = {}


class Handle(int, Generic[Result]):
    """One call, made before it is submitted. What it borrows stays alive until the engine is done
    with it, also when the program drops the handle or an exception ends a wait.

    A number, as Horovod's handles are, counted from 1 in this process; and more than its number, so
    that nothing is left behind when the program drops it: int(handle) is no handle.

    Give a name to calls whose handle may be dropped or whose wait may be interrupted on some ranks
    only: a name that the engine chose stays in use until somebody has waited for the call, so the
    ranks would come to different ones.
    """

    __slots__ = ()

    def __new__(cls, engine: core.Engine, prepared: PreparedCall[Result]) -> Handle[Result]:
        if _orphans:
            release_orphans()
        prepared.engine = engine
        number = next(_numbers)
        _calls[number] = prepared
        return int.__new__(cls, number)

    def poll(self) -> bool:
        """Is the call done? Then wait() returns at once, also after shutdown()."""
        call = _calls[self]
        if isinstance(call, tuple):
            return True
        done = call.engine.poll(call.call.handle)
        if done:
            self._take()
        return done

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        call = _calls[self]
        if not isinstance(call, tuple):
            call.engine.wait(call.call.handle)
            call = self._take()
        if call[1] is not None:
            del call  # with the error it would be a circle
            raise _error_of(self)
        return call[0]

    def take(self) -> Result:
        """Like wait(), but forgets the result: a later call returns None. An error stays."""
        result = self.wait()
        _calls[self] = _NOTHING
        return result

    def _take(self) -> tuple[Any, BaseException | None]:
        with _taking:
            call = _calls[self]
            if isinstance(call, tuple):
                return call  # another thread has waited, too
            try:
                _calls[self] = (call.finish(call.engine, call.call.handle), None)
            except BaseException as error:  # also Ctrl-C: the engine gives an outcome only once
                _calls[self] = (None, error)
            del call  # an error would keep it, and with it the memory
            return _calls[self]  # type: ignore[return-value]

    def __del__(self) -> None:
        call = _calls.pop(self, _NOTHING)
        if isinstance(call, tuple) or call.engine.forked:
            return
        if number := call.call.handle:  # 0: submit() has raised
            call.engine.drop(number)
            _orphans[call.engine, number] = call
            release_orphans()


def _error_of(handle: int) -> BaseException:
    _, error = _calls[handle]  # type: ignore[misc]
    return error  # type: ignore[return-value]


class BatchHandle(int, Generic[Result]):
    """The calls of one batch; the result is the list of theirs. A number, as Handle is."""

    __slots__ = ()

    def __new__(cls, handles: Sequence[Handle[Result]]) -> BatchHandle[Result]:
        number = next(_numbers)
        _batches[number] = handles
        return int.__new__(cls, number)

    def poll(self) -> bool:
        """Are all of them done? Then wait() returns at once."""
        return all(handle.poll() for handle in _batches[self])

    def wait(self) -> list[Result]:
        """The results, when all are there; or what went wrong first in the order of the batch."""
        failures: list[FarandoleError] = []
        results: list[Result] = []
        for handle in _batches[self]:
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
        for handle in _batches[self]:
            handle.take()
        return results

    def __del__(self) -> None:
        _batches.pop(self, None)


def release_orphans() -> None:
    """Lets go of the memory of dropped calls that are done by now."""
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
