"""Joining and leaving the job. Holds the engine of this process, the project's only global."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

from farandole import core
from farandole.errors import CallError
from farandole.group import Group, global_process_set


class _Process:
    """What this process is at the moment: outside a job, or a member by its engine."""

    engine: core.Engine | None = None
    groups: tuple[Group, ...] = ()
    # Other objects for these groups, from a later init().
    copies: tuple[Group, ...] = ()
    forked = False


_process = _Process()


def init(*, process_sets: Sequence[Group] | None = None) -> None:
    """Joins the job; waits for the other ranks. Does nothing if that has been done.

    Without a launcher the job is this process alone. The same process_sets must be given on every
    rank; each gets its `process_set_id`.
    """
    if _process.forked:
        raise CallError("init() was called in a forked child of a member; start a new process")
    groups = (global_process_set, *(process_sets or ()))
    for group in groups:
        if not isinstance(group, Group):
            raise CallError(f"process_sets must hold ProcessSet objects, not {group!r}")
    if _process.engine is not None:
        if process_sets is not None:
            _register_again(process_sets)
        return
    engine = core.Engine(groups=[group.ranks or [] for group in groups[1:]])
    for number, group in enumerate(groups):
        group.register(number, engine.ranks_of(number), engine.rank)
    _process.engine, _process.groups = engine, groups


def _register_again(process_sets: Sequence[Group]) -> None:
    known = _process.groups[1:]
    if [group.ranks for group in process_sets] != [group.ranks for group in known]:
        raise CallError(
            "init() was called again with other process_sets; call shutdown() in between"
        )
    for group, same in zip(process_sets, known, strict=True):
        if group.process_set_id is None:
            group.become(same)
            _process.copies += (group,)


def shutdown() -> None:
    """Leaves the job: calls of others that need this rank fail. init() may follow."""
    _leave("it called shutdown()")


def _leave(reason: str) -> None:
    engine, groups = _process.engine, _process.groups + _process.copies
    if engine is None or _process.forked:
        return
    _process.engine, _process.groups, _process.copies = None, (), ()
    for group in groups:
        group.forget()
    engine.shutdown(reason)


def engine() -> core.Engine:
    """The engine of this process; raises CallError outside a job."""
    if _process.engine is None:
        raise CallError("farandole is not initialized: call init() first")
    return _process.engine


def is_initialized() -> bool:
    return _process.engine is not None


def rank() -> int:
    """This process among all of the job: 0 ... size() - 1."""
    return engine().rank


def size() -> int:
    return engine().size


def local_rank() -> int:
    """This process among those of the job on this host."""
    return engine().local_rank


def local_size() -> int:
    return engine().local_size


def cross_rank() -> int:
    """This host among those that have a process with this local_rank()."""
    return engine().cross_rank


def cross_size() -> int:
    return engine().cross_size


def is_homogeneous() -> bool:
    """Has every host the same number of processes?"""
    here = engine()
    return here.local_size * here.cross_size == here.size


def _leave_at_exit() -> None:
    _leave(_reason_of_exit())


def _reason_of_exit() -> str:
    """One line for the others: the exception that ends this process, if any."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return "its program ended"
    lines = str(error).splitlines()
    text = f"uncaught {type(error).__name__}"
    return f"{text}: {lines[0][:500]}" if lines else text


def _abandon_in_child() -> None:
    if _process.engine is not None:
        _process.forked = True
        _process.engine.abandon_after_fork()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_abandon_in_child)
