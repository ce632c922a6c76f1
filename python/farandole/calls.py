"""Start calls, wait for them, and make calls without a tensor, for every frontend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from farandole import arguments, core, lifecycle
from farandole.errors import CallError, FarandoleError
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle, Handle, PreparedCall, abandon, handle_of, release_dropped

Result = TypeVar("Result")


def run(call: core.Call, borrowed: object) -> None:
    """Run a call on this thread until it is done. Raise its error if it fails. `borrowed` keeps
    alive the memory that the engine works on."""
    engine = lifecycle.engine()
    release_dropped()
    try:
        engine.run(call)
    except BaseException:
        abandon(engine, call.handle, borrowed)
        raise


def start(
    prepared: PreparedCall[Result], blocking: bool = False, engine: core.Engine | None = None
) -> Handle[Result]:
    """Submit a call and return its handle.

    If `blocking` is True, the caller must wait for the handle immediately. The call then runs on
    this thread if possible, without waking another thread. If `engine` is None, the engine of the
    job is used.
    """
    engine = engine or lifecycle.engine()
    handle = Handle.for_call(engine, prepared)
    engine.submit(prepared.call, blocking)
    return handle


def start_batch(
    batch: Sequence[PreparedCall[Result]], blocking: bool = False, engine: core.Engine | None = None
) -> BatchHandle[Result]:
    """Submit all calls of a batch, or none if there is an error. See start() for the arguments."""
    engine = engine or lifecycle.engine()
    handle = BatchHandle([Handle.for_call(engine, prepared) for prepared in batch])
    engine.submit_batch([prepared.call for prepared in batch], blocking)
    return handle


def barrier(process_set: Group = global_process_set) -> None:
    """Wait until all members have called barrier().

    Args:
        process_set: The group; by default all ranks.

    Raises:
        GroupLostError: A member has left or died.
    """
    run(core.barrier("", arguments.group_number(process_set)), None)


# An entry for a join() that was interrupted: the engine, the call and the handle of this join().
# The next join() continues this call. Until then, this rank cannot make other calls.
_interrupted_joins: list[tuple[core.Engine, core.Call, Handle[int]]] = []


def join(device: int = -1) -> int:
    """Declare that this rank has no more data, and wait until all ranks have called join().

    While this rank waits, it takes part without data in every allreduce and allgather of all ranks.
    It contributes zeros to a sum; Average still divides by the number of all ranks. An allgather
    returns the rows of the other ranks. Other operations of all ranks raise an error on all ranks.
    A call in a smaller process set waits for this rank if this rank is a member. After an
    interruption, such as Ctrl-C, call join() again: the second call continues the first one.

    Args:
        device: Ignored. Scripts that were written for Horovod pass it.

    Returns:
        The rank that made the most calls before its join(). If several ranks made this number of
        calls, the highest of these ranks. The result is the same on all ranks.
    """
    lifecycle.wait_for_frameworks()
    engine = lifecycle.engine()
    interrupted_join = _interrupted_joins.pop() if _interrupted_joins else None
    if interrupted_join is not None and interrupted_join[0] is engine:
        _, call, handle = interrupted_join
    else:
        call = core.join("", arguments.group_number(global_process_set))
        handle = Handle.for_call(engine, PreparedCall(call, None, core.Engine.peek_last_joined))
    try:
        if call.handle == 0:
            engine.submit(call, True)
        last_rank = handle.wait()
    except FarandoleError:
        raise
    except BaseException:
        _interrupted_joins.append((engine, call, handle))
        raise
    global_process_set.begin_period_after_join()
    return last_rank


def poll(handle: Handle[Any] | BatchHandle[Any] | int) -> bool:
    """Return whether the call is done. If it is, synchronize() returns at once.

    Args:
        handle: The handle that a call with _async has returned, or its number, int(handle).
    """
    known_handle = handle_of(handle)
    if known_handle is None:
        raise _not_a_handle_error(handle)
    return known_handle.poll()


@overload
def synchronize(handle: Handle[Result]) -> Result: ...
@overload
def synchronize(handle: BatchHandle[Result]) -> list[Result]: ...
@overload
def synchronize(handle: int) -> Any: ...
def synchronize(handle: Handle[Any] | BatchHandle[Any] | int) -> Any:
    """Wait for the call and return its result; for a grouped call, a list of results.

    `handle` may also be the number int(handle). synchronize() makes the handle forget the result,
    so a second synchronize() returns None, as in Horovod. A number that belongs to no handle also
    gives None, because scripts use -1 for "not started".

    Raises:
        FarandoleError: The call has failed. The subclass says what the program can do.
    """
    known_handle = handle_of(handle)
    if known_handle is not None:
        return known_handle.take()
    if isinstance(handle, int):
        return None
    raise _not_a_handle_error(handle)


def _not_a_handle_error(handle: object) -> CallError:
    return CallError(
        "expected a handle, which the calls that end in _async return, or its number, "
        f"int(handle), before the result was taken; got {handle!r}"
    )
