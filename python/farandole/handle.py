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
    works on. `finish` turns the outcome into the result. calls.start() sets `engine`."""

    __slots__ = ("borrowed", "call", "engine", "finish")

    engine: core.Engine

    def __init__(
        self, call: core.Call, borrowed: object, finish: Callable[[core.Engine, int], Result]
    ) -> None:
        self.call = call
        self.borrowed = borrowed
        self.finish = finish


# Held while a thread takes the outcome of a call, because the engine gives it only once. All
# handles share one lock, because a thousand locks would be work for the garbage collector.
_taking = threading.RLock()

# Calls whose handles the program dropped before they were done, with the memory they borrow.
_orphans: dict[tuple[core.Engine, int], object] = {}

_numbers = itertools.count(1)


class _Number(int):
    def __reduce__(self) -> Any:
        raise CallError(
            "a handle cannot be copied or sent elsewhere: wait for it where it was made"
        )


class Handle(_Number, Generic[Result]):
    """One call, which exists before it is submitted. The memory that the engine borrows stays alive
    until the engine is done with it, also if the program drops the handle or an exception ends a
    wait.

    A handle is a number, as in Horovod, counted from 1 in this process. But int(handle) is not a
    handle: only the object keeps the result, and dropping it leaves nothing behind.

    The name of a call is in use until wait() or take() has returned, or has raised the call's
    error. An interrupted wait does not end the use. Neither poll() nor dropping the handle ends it.
    So names follow from what the program does, in its own order, and all ranks find the same names.
    Threads that run at the same time must give names to their calls. So must a program that
    continues after an interruption of some ranks only.
    """

    _prepared: PreparedCall[Result] | None  # None when the outcome is here
    # Attributes of the class until they are set, because setting them on each object costs time.
    # _unreleased is not None while the outcome is here and the name in use.
    _unreleased: tuple[core.Engine, int] | None = None
    _result: Result | None = None
    _error: Exception | None = None

    def __new__(cls, engine: core.Engine, prepared: PreparedCall[Result]) -> Handle[Result]:
        if _orphans:
            release_orphans()
        prepared.engine = engine
        handle = int.__new__(cls, next(_numbers))
        handle._prepared = prepared
        return handle

    def poll(self) -> bool:
        """Return whether the call is done. Then its result is in place, and wait() returns at
        once, also after shutdown()."""
        prepared = self._prepared
        if prepared is None:
            return True
        done = prepared.engine.poll(prepared.call.handle)
        if done:
            self._finish()
        return done

    def wait(self) -> Result:
        """Wait for the call and return its result, or raise its error. A later call does the
        same."""
        self._complete()
        if self._unreleased is not None:
            self._release()
        error = self._error  # read once, because another thread may clear it
        if error is not None:
            raise _fresh(error)
        return self._result  # type: ignore[return-value]

    def take(self) -> Result:
        """Do what wait() does, but forget the result or the error: a later call returns None."""
        try:
            result = self.wait()
        except Exception:  # not BaseException: an interrupted call is still in flight
            self._error = None
            raise
        self._result = None
        return result

    def _complete(self) -> None:
        """Wait until the outcome is here. The name stays in use."""
        prepared = self._prepared
        if prepared is not None:
            prepared.engine.wait(prepared.call.handle)
            self._finish()

    def _finish(self) -> None:
        """Take the outcome of a call that is done. An interruption leaves everything unchanged."""
        with _taking:
            prepared = self._prepared
            if prepared is None:
                return  # another thread has waited, too
            engine, number = prepared.engine, prepared.call.handle
            try:
                self._result = prepared.finish(engine, number)
            except Exception as error:
                self._error = _fresh(error)
            self._unreleased = engine, number
            self._prepared = None  # last: from now on other threads use the result
            prepared = None  # an error holds this frame, which would keep the memory

    def _release(self) -> None:
        unreleased = self._unreleased  # another thread may also do this, which does no harm
        if unreleased is not None:
            engine, number = unreleased
            engine.release(number)
            self._unreleased = None

    def __del__(self) -> None:
        prepared = getattr(self, "_prepared", None)
        if prepared is not None:
            engine, number = prepared.engine, prepared.call.handle
        elif self._unreleased is not None:
            engine, number = self._unreleased
        else:
            return
        if engine.forked or number == 0:  # 0 if submit() has raised
            return
        engine.drop(number)
        if prepared is not None:
            _orphans[engine, number] = prepared
            release_orphans()


def _fresh(error: Exception) -> Exception:
    """Return a copy of our error without its traceback, which would keep frames alive, and with
    them handles and tensors. Errors of other libraries keep theirs, for people to read."""
    return copy.copy(error) if isinstance(error, FarandoleError) else error


class BatchHandle(_Number, Generic[Result]):
    """The calls of one batch. Its result is the list of their results. A number, as Handle is."""

    _handles: Sequence[Handle[Result]]

    def __new__(cls, handles: Sequence[Handle[Result]]) -> BatchHandle[Result]:
        batch = int.__new__(cls, next(_numbers))
        batch._handles = handles
        return batch

    def poll(self) -> bool:
        """Return whether all calls are done. Then wait() returns at once."""
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> list[Result]:
        """Wait for all calls and return their results, or raise the first error in their order."""
        for handle in self._handles:
            try:
                handle._complete()
            except FarandoleError:  # there is no outcome, so wait() below raises it again
                continue
        for handle in self._handles:  # all of them; none if the wait was interrupted
            handle._release()
        return [handle.wait() for handle in self._handles]

    def take(self) -> list[Result]:
        """Do what wait() does, but forget results and errors: later there is None for each."""
        try:
            results = self.wait()
        except Exception:  # as in Handle.take()
            self._forget()
            raise
        self._forget()
        return results

    def _forget(self) -> None:
        for handle in self._handles:
            if handle.poll():
                with contextlib.suppress(Exception):
                    handle.take()


def release_orphans() -> None:
    """Release the memory of dropped calls that are done."""
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
