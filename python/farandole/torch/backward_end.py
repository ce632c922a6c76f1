"""Calls back when a backward pass has ended, before backward() returns.

Autograd has callbacks for the end of a pass, but it runs them too early for us in two cases. A
checkpoint with use_reentrant=True runs a backward pass inside of another one: what is asked for in
there is put off to the end of the outermost pass. And several optimizers may wait for one pass:
they are called in the order in which they were made, which is the same on all ranks.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, Protocol

import torch

_current_pass: Callable[[], int] = torch._C._current_graph_task_id
_call_at_end: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)
# Frames with these codes are in the stack while a pass runs inside of another one.
_RUN = torch.autograd.graph._engine_run_backward.__code__
_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__


class Waiting(Protocol):
    def backward_has_ended(self) -> None: ...


class BackwardEnd:
    """Of one Waiting object, which is not kept alive."""

    _serials = itertools.count()
    _expecting: ClassVar[dict[int, BackwardEnd]] = {}  # by serial number

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = weakref.ref(waiting)
        self._serial = next(self._serials)
        self._pass = -1

    def expect(self) -> None:
        """Called in a hook of a parameter: the current pass."""
        number = _current_pass()
        if number == self._pass:
            return
        self._pass = number
        self._expecting[self._serial] = self
        _call_at_end(_end)


def _end() -> None:
    nodes, passes = _enclosing(sys._getframe())
    if nodes:  # the outermost one belongs to the outermost pass, and its hooks run in that
        _call_after(nodes[-1])
    elif passes <= 1:
        _call_all()
    # Else a hook has called backward(): step() finishes what this pass has begun.


def _call_all() -> None:
    expecting = BackwardEnd._expecting
    errors: list[Exception] = []
    for serial in sorted(expecting):
        waiting = expecting.pop(serial)._waiting()
        try:
            if waiting is not None:
                waiting.backward_has_ended()
        except Exception as error:  # the others must not stay unfinished
            errors.append(error)
    if errors:
        raise errors[0]


def _enclosing(frame: FrameType | None) -> tuple[list[Any], int]:
    """The nodes that are running, the innermost one first, and how many passes are."""
    nodes, passes = [], 0
    while frame is not None:
        if frame.f_code is _APPLY:
            nodes.append(frame.f_locals["self"])
        elif frame.f_code is _RUN:
            passes += 1
        frame = frame.f_back
    return nodes, passes


def _call_after(node: Any) -> None:
    def end_later(*_: object) -> None:
        hook.remove()
        _call_at_end(_end)

    hook = node.register_hook(end_later)
