"""Starting calls and waiting for them, and the calls that need no tensor: for every frontend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from farandole import arguments, core, lifecycle
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle, Handle, PreparedCall

Result = TypeVar("Result")


def start(prepared: PreparedCall[Result], waits: bool = False) -> Handle[Result]:
    """`waits`: the caller waits for the handle at once, so the call runs here and nobody else is
    woken for it."""
    engine = lifecycle.engine()
    handle = Handle(engine, prepared)
    engine.submit(prepared.call, waits)
    return handle


def start_batch(batch: Sequence[PreparedCall[Result]], waits: bool = False) -> BatchHandle[Result]:
    """Starts all of them or, on an error, none."""
    engine = lifecycle.engine()
    handle = BatchHandle([Handle(engine, prepared) for prepared in batch])
    engine.submit_batch([prepared.call for prepared in batch], waits)
    return handle


def barrier(process_set: Group = global_process_set) -> None:
    """Returns when all members have called it."""
    call = core.barrier("", arguments.group_number(process_set))
    start(PreparedCall(call, None, core.Engine.take), waits=True).wait()


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and returns when all ranks have said so: the rank that
    was the last one, the same everywhere.

    Until then this rank takes part in every allreduce of the others as if it gave nothing: zeros to
    a sum, which an average still divides by the number of all ranks. Other calls are errors there.
    `device` is there for scripts that give it, and has no meaning.
    """
    call = core.join("", arguments.group_number(global_process_set))
    return start(PreparedCall(call, None, core.Engine.take_last_joined), waits=True).wait()


def poll(handle: Handle[Result] | BatchHandle[Result]) -> bool:
    """Is the call done? Then synchronize returns at once."""
    if isinstance(handle, (Handle, BatchHandle)):
        return handle.poll()
    raise _no_handle(handle)


def synchronize(handle: Handle[Result] | BatchHandle[Any] | int) -> Result | list[Any] | None:
    """Waits for the call and returns its result, or raises what went wrong. Of a grouped call: the
    list of results.

    The handle forgets the result then: a second time there is None, as in Horovod. There is None
    for a number that is no handle, too: scripts use -1 for "nothing was started".
    """
    if isinstance(handle, (Handle, BatchHandle)):
        return handle.take()
    if isinstance(handle, int):
        return None
    raise _no_handle(handle)


def _no_handle(handle: object) -> CallError:
    return CallError(
        "a handle is needed, as the calls that end in _async return it (int(handle) is only its "
        f"number); got {handle!r}"
    )
