"""Send whole Python objects, with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole import objects
from farandole.group import Group, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Any:
    """Return the object of root_rank on every member: see farandole.broadcast_object(). `session`
    is ignored, because the call needs no graph."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls broadcast_object() with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return the list of the members' objects, in the order of their ranks: see
    farandole.allgather_object(). `session` is ignored, because the call needs no graph."""
    return objects.allgather_object(obj, name, process_set)
