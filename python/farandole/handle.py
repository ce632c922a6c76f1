"""Handles of calls in flight, and the life of the memory that the engine borrows for them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from farandole import core
from farandole.errors import CallError, FarandoleError

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


# Held by who takes the outcome of a call: the engine gives it only once. One for all handles, since
# a thousand locks are a thousand objects for the garbage collector.
_taking = threading.RLock()

# Calls whose handle the program dropped before they were done, and what the engine borrows.
_orphans: dict[tuple[core.Engine, int], object] = {}

_numbers = itertools.count(1)


class _Number(int):
    def __reduce__(self) -> Any:
        raise CallError(
            "a handle cannot be copied or sent elsewhere: wait for it where it was made"
        )


class Handle(_Number, Generic[Result]):
    """One call, made before it is submitted. What it borrows stays alive until the engine is done
    with it, also when the program drops the handle or an exception ends a wait.

    A number, as Horovod's handles are, counted from 1 in this process; and more than its number, so
    that nothing is left behind when the program drops it: int(handle) is no handle.

    Give a name to calls whose handle may be dropped or whose wait may be interrupted on some ranks
    only: a name that the engine chose stays in use until somebody has waited for the call, so the
    ranks would come to different ones.
    """

    _prepared: PreparedCall[Result] | None  # until the outcome was taken
    # The class's as long as there are none: each attribute of a number costs time.
    _result: Result | None = None
    _error: BaseException | None = None

    def __new__(cls, engine: core.Engine, prepared: PreparedCall[Result]) -> Handle[Result]:
        if _orphans:
            release_orphans()
        prepared.engine = engine
        handle = int.__new__(cls, next(_numbers))
        handle._prepared = prepared
        return handle

    def poll(self) -> bool:
        """Is the call done? Then its result is where it belongs, and wait() returns at once, also
        after shutdown()."""
        prepared = self._prepared
        if prepared is None:
            return True
        done = prepared.engine.poll(prepared.call.handle)
        if done:
            self._take()
            if self._error is not None and not isinstance(self._error, Exception):
                raise self._error  # Ctrl-C must not wait
        return done

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        prepared = self._prepared
        if prepared is not None:
            prepared.engine.wait(prepared.call.handle)
            self._take()
            prepared = None  # an error knows this frame, and would keep the memory
        error = self._error  # another thread may take it
        if error is not None:
            raise _fresh(error)
        return self._result  # type: ignore[return-value]

    def take(self) -> Result:
        """Like wait(), but forgets the result or the error: a later call returns None."""
        try:
            return self.wait()
        finally:
            self._result = self._error = None

    def _take(self) -> None:
        with _taking:
            prepared = self._prepared
            if prepared is None:
                return  # another thread has waited, too
            try:
                self._result = prepared.finish(prepared.engine, prepared.call.handle)
            except BaseException as error:  # also Ctrl-C: the engine gives an outcome only once
                self._error = _fresh(error)
            self._prepared = None  # last: from now on others use the result
            prepared = None  # as in wait()

    def __del__(self) -> None:
        prepared = getattr(self, "_prepared", None)
        if prepared is None or prepared.engine.forked:
            return
        if number := prepared.call.handle:  # 0: submit() has raised
            prepared.engine.drop(number)
            _orphans[prepared.engine, number] = prepared
            release_orphans()


def _fresh(error: BaseException) -> BaseException:
    """The error as it was before anybody raised it: one that was raised knows the frames that it
    came through, and with them handles and tensors. Others than ours stay, to be understood."""
    return copy.copy(error) if isinstance(error, FarandoleError) else error


class BatchHandle(_Number, Generic[Result]):
    """The calls of one batch; the result is the list of theirs. A number, as Handle is."""

    _handles: Sequence[Handle[Result]]

    def __new__(cls, handles: Sequence[Handle[Result]]) -> BatchHandle[Result]:
        batch = int.__new__(cls, next(_numbers))
        batch._handles = handles
        return batch

    def poll(self) -> bool:
        """Are all of them done? Then wait() returns at once."""
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> list[Result]:
        """The results, when all are there; or what went wrong first in the order of the batch."""
        failed: Handle[Result] | None = None
        results: list[Result] = []
        for handle in self._handles:
            try:
                results.append(handle.wait())
            except FarandoleError:
                failed = failed or handle
        if failed is not None:
            failed.wait()  # raises
        return results

    def take(self) -> list[Result]:
        """Like wait(), but forgets the results and errors: later there is None in place of each."""
        try:
            return self.wait()
        finally:
            for handle in self._handles:
                if handle.poll():
                    with contextlib.suppress(Exception):
                        handle.take()


def release_orphans() -> None:
    """Lets go of the memory of dropped calls that are done by now."""
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
