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

    The name of a call is in use until wait() or take() has returned, or raised what went wrong: an
    interrupted wait has not. poll() changes nothing about names, nor does dropping the handle: that
    call's name stays in use. So names follow from what the program does in which order, and the
    ranks come to the same. Threads that run at the same time must give names to their calls, and a
    program that goes on after an interruption of some ranks only must do so, too.
    """

    _prepared: PreparedCall[Result] | None  # until the outcome is here
    # The class's as long as there are none: each attribute of a number costs time.
    _unreleased: tuple[core.Engine, int] | None = None  # the outcome is here, the name in use
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
        """Is the call done? Then its result is where it belongs, and wait() returns at once, also
        after shutdown()."""
        prepared = self._prepared
        if prepared is None:
            return True
        done = prepared.engine.poll(prepared.call.handle)
        if done:
            self._finish()
        return done

    def wait(self) -> Result:
        """The result, when it is there. The same again on every later call."""
        self._complete()
        if self._unreleased is not None:
            self._release()
        error = self._error  # another thread may take it
        if error is not None:
            raise _fresh(error)
        return self._result  # type: ignore[return-value]

    def take(self) -> Result:
        """Like wait(), but forgets the result or the error: a later call returns None."""
        try:
            result = self.wait()
        except Exception:  # after an interruption there is something left to be waited for
            self._error = None
            raise
        self._result = None
        return result

    def _complete(self) -> None:
        """Waits until the outcome is here. The name stays in use."""
        prepared = self._prepared
        if prepared is not None:
            prepared.engine.wait(prepared.call.handle)
            self._finish()

    def _finish(self) -> None:
        """Of a call that is done. An interruption leaves everything as it was."""
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
            self._prepared = None  # last: from now on others use the result
            prepared = None  # an error knows this frame, and would keep the memory

    def _release(self) -> None:
        unreleased = self._unreleased  # another thread may do the same, which is no harm
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
        if engine.forked or number == 0:  # 0: submit() has raised
            return
        engine.drop(number)
        if prepared is not None:
            _orphans[engine, number] = prepared
            release_orphans()


def _fresh(error: Exception) -> Exception:
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
        for handle in self._handles:
            try:
                handle._complete()
            except FarandoleError:  # there is no outcome: wait() raises it again
                continue
        for handle in self._handles:  # all or, when the waiting was interrupted, none
            handle._release()
        return [handle.wait() for handle in self._handles]

    def take(self) -> list[Result]:
        """Like wait(), but forgets the results and errors: later there is None in place of each."""
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
    """Lets go of the memory of dropped calls that are done by now."""
    for engine, number in list(_orphans):
        if not engine.forked and engine.poll(number):
            _orphans.pop((engine, number), None)
