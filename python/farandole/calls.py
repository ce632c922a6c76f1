"""What needs no tensor, and so is the same in every frontend."""

from __future__ import annotations

from typing import TypeVar

from farandole import core, lifecycle
from farandole.group import Group, global_process_set
from farandole.handle import Handle

Result = TypeVar("Result")


def barrier(process_set: Group = global_process_set) -> None:
    """Returns when all members have called it."""
    engine = lifecycle.engine()
    number = engine.barrier("", process_set.number())
    Handle(engine, number, None, core.Engine.take).wait()


def poll(handle: Handle[Result]) -> bool:
    """Is the call done? Then synchronize returns at once."""
    return handle.poll()


def synchronize(handle: Handle[Result]) -> Result:
    """Waits for the call and returns its tensor, or raises what went wrong."""
    return handle.wait()
