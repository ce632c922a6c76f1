"""Handles of calls in flight. They keep alive the memory that the engine borrows for the calls."""

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
    """A call that is ready to be submitted. `borrowed` keeps alive the memory that the engine works
    on. `finish` makes the result from the outcome. The handle sets `engine`. If the engine itself
    writes the result into an array of the program, that array is `in_place`."""

    __slots__ = ("borrowed", "call", "engine", "finish")

    engine: core.Engine
    in_place: Result | None = None

    def __init__(
        self, call: core.Call, borrowed: object, finish: Callable[[core.Engine, int], Result]
    ) -> None:
        self.call = call
        self.borrowed = borrowed
        self.finish = finish


# A thread holds this lock while it takes the outcome of a call from the engine, so that only one
# thread takes it. All handles share this lock: a lock in each handle would slow the garbage
# collector.
_outcome_lock = threading.RLock()

# Calls that were not done when the program dropped their handles, with the memory that they borrow.
_dropped_calls: dict[tuple[core.Engine, int], object] = {}

_numbers = itertools.count(1)
_new_number = int.__new__

# Handles that the program has converted to a number by int(handle). They are kept until the program
# waits for the call, because a program may keep only the number, as with Horovod.
_handles_by_number: dict[int, Handle[Any] | BatchHandle[Any]] = {}


class _NumberedHandle(int):
    def __int__(self) -> int:
        if self._has_outcome():
            _handles_by_number[self] = self  # type: ignore[assignment]
        return super().__int__()

    def _has_outcome(self) -> bool:
        """Return whether the program can still take an outcome, now or when the call is done."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        raise CallError(
            "a handle cannot be copied or sent elsewhere: wait for it where it was made"
        )


def handle_of(number: object) -> Handle[Any] | BatchHandle[Any] | None:
    """Return the handle whose int() is `number`, or None if there is none. If `number` is itself a
    handle, return it."""
    if isinstance(number, (Handle, BatchHandle)):
        return number
    return _handles_by_number.get(number) if isinstance(number, int) else None


class Handle(_NumberedHandle, Generic[Result]):
    """The handle of one call; it is made before the call is submitted. The memory that the engine
    borrows stays alive until the engine is done with it, even if the program drops the handle or an
    exception ends a wait.

    As in Horovod, a handle is a number; each process counts its handles from 1. If the program
    drops the handle, the result is lost. But if the program has taken the number by int(handle),
    the handle is kept until the program takes the result.

    The name of a call is in use until wait() or take() has returned, or has raised the call's
    error. The name stays in use after an interrupted wait, after poll(), and after the program has
    dropped the handle. Automatic names depend only on the program's own calls, and on whether the
    program has waited for all earlier results. These names are the same on all ranks if all ranks
    have waited for the same number of results before each call. Threads that run at the same time
    must give names to their calls. A program that continues after an interruption of only some
    ranks must also give names.
    """

    # Defaults are attributes of the class, because setting them on each object costs time.
    _prepared: PreparedCall[Result] | None = None  # None after the outcome was taken
    # The engine and the call's number, if the outcome was taken but the name is still in use.
    _unreleased_call: tuple[core.Engine, int] | None = None
    _result: Result | None = None
    _error: Exception | None = None

    @staticmethod
    def for_call(engine: core.Engine, prepared: PreparedCall[Result]) -> Handle[Result]:
        """Return a handle of the call. A constructor would take twice the time of this function."""
        if _dropped_calls:
            release_dropped()
        prepared.engine = engine
        handle = _new_number(Handle, next(_numbers))
        handle._prepared = prepared
        return handle

    def _has_outcome(self) -> bool:
        is_pending = self._prepared is not None
        return is_pending or self._result is not None or self._error is not None

    def poll(self) -> bool:
        """Return whether the call is done. If it is, its result is complete, and wait() returns at
        once, even after shutdown()."""
        prepared = self._prepared
        if prepared is None:
            return True
        done = prepared.engine.poll(prepared.call.handle)
        if done:
            self._take_outcome()
        return done

    def wait(self) -> Result:
        """Wait for the call and return its result, or raise its error. Every later wait() returns
        the same result or raises the same error."""
        if self._prepared is not None:
            self._wait_for_outcome()
        if self._unreleased_call is not None:
            self._release()
        # The program has the handle itself, so _handles_by_number need not keep it.
        if _handles_by_number:
            _handles_by_number.pop(self, None)
        error = self._error  # read _error once, because another thread may clear _error
        if error is not None:
            raise _without_traceback(error)
        return self._result  # type: ignore[return-value]

    def take(self) -> Result:
        """Do what wait() does, but forget the result or error: a later take() returns None."""
        prepared = self._prepared
        if prepared is not None and prepared.in_place is not None:
            try:
                prepared.engine.collect(prepared.call)
            except FarandoleError:
                prepared = None  # so that the traceback of wait() below does not keep the call
            else:
                self._prepared = None
                if _handles_by_number:
                    _handles_by_number.pop(self, None)
                return prepared.in_place  # type: ignore[return-value]
        try:
            result = self.wait()
        except Exception:  # not KeyboardInterrupt, because the call is then still in flight
            self._error = None
            raise
        self._result = None
        return result

    def _wait_for_outcome(self) -> None:
        """Wait for the outcome of the call and take it. The call's name stays in use."""
        prepared = self._prepared
        if prepared is not None:
            prepared.engine.wait(prepared.call.handle)
            self._take_outcome()

    def _take_outcome(self) -> None:
        """Take the outcome of a call that is done. If this method is interrupted, it changes
        nothing."""
        with _outcome_lock:
            prepared = self._prepared
            if prepared is None:
                return  # another thread has taken the outcome
            engine, number = prepared.engine, prepared.call.handle
            try:
                self._result = prepared.finish(engine, number)
            except Exception as error:
                self._error = _without_traceback(error)
            self._unreleased_call = engine, number
            self._prepared = None  # last: the result must be complete before this
            # A traceback may keep this frame alive. The frame must not keep the call alive.
            prepared = None

    def _release(self) -> None:
        unreleased = self._unreleased_call  # two threads may release the same call without harm
        if unreleased is not None:
            engine, number = unreleased
            engine.release(number)
            self._unreleased_call = None

    def __del__(self) -> None:
        prepared = self._prepared
        if prepared is not None:
            engine, number = prepared.engine, prepared.call.handle
        elif self._unreleased_call is not None:
            engine, number = self._unreleased_call
        else:
            return
        abandon(engine, number, prepared)


def abandon(engine: core.Engine, number: int, borrowed: object) -> None:
    """Give up a call that the program will not wait for: keep its memory alive until the call is
    done. If `number` is 0, do nothing: the call was not submitted, or was released."""
    if engine.forked or number == 0:
        return
    engine.drop(number)
    if borrowed is not None:
        _dropped_calls[engine, number] = borrowed
        release_dropped()


def _without_traceback(error: Exception) -> Exception:
    """Return a copy of a FarandoleError without its traceback, because a traceback keeps frames
    alive, with their handles and tensors. Errors of other libraries keep their tracebacks, because
    users need them to find the cause."""
    return copy.copy(error) if isinstance(error, FarandoleError) else error


class BatchHandle(_NumberedHandle, Generic[Result]):
    """The handle of a batch of calls. Its result is the list of their results. Like Handle, it is a
    number."""

    _handles: Sequence[Handle[Result]]

    def __new__(cls, handles: Sequence[Handle[Result]]) -> BatchHandle[Result]:
        batch = int.__new__(cls, next(_numbers))
        batch._handles = handles
        return batch

    def _has_outcome(self) -> bool:
        return any(handle._has_outcome() for handle in self._handles)

    def poll(self) -> bool:
        """Return whether all calls are done. If they are, wait() returns at once."""
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> list[Result]:
        """Wait for all calls. Return their results, or raise the error of the first failed call."""
        for handle in self._handles:
            try:
                handle._wait_for_outcome()
            except FarandoleError:  # handle.wait() below raises the error again
                continue
        for handle in self._handles:  # not reached if the wait was interrupted
            handle._release()
        return [handle.wait() for handle in self._handles]

    def take(self) -> list[Result]:
        """Do what wait() does, but forget the outcomes: a later take() gives None for each call."""
        try:
            results = self.wait()
        except Exception:  # not after an interruption: see Handle.take()
            self._forget()
            raise
        self._forget()
        return results

    def _forget(self) -> None:
        _handles_by_number.pop(self, None)
        for handle in self._handles:
            if handle.poll():
                with contextlib.suppress(Exception):
                    handle.take()


def release_dropped() -> None:
    """Release the memory of dropped calls that are done."""
    for engine, number in list(_dropped_calls):
        if not engine.forked and engine.poll(number):
            _dropped_calls.pop((engine, number), None)
