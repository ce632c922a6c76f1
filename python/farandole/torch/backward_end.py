"""Call back when a backward pass has ended, before backward() returns.

Autograd has callbacks for the end of a pass, but it runs them too early for us in two cases. First,
a checkpoint with use_reentrant=True runs a backward pass within another one: a callback that is
requested there is delayed to the end of the outermost pass. Second, several optimizers may wait for
one pass: they are called in the order in which they were made, which is the same on all ranks.
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
# Code objects of the frames that are on the stack while one pass runs within another.
_RUN = torch.autograd.graph._engine_run_backward.__code__
_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__


class Waiting(Protocol):
    def backward_has_ended(self) -> None: ...


class BackwardEnd:
    """The request of one Waiting object, which it does not keep alive."""

    _serials = itertools.count()
    _expecting: ClassVar[dict[int, BackwardEnd]] = {}  # by serial number

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = weakref.ref(waiting)
        self._serial = next(self._serials)
        self._pass = -1

    def expect(self) -> None:
        """Request a callback at the end of the current pass. Call it in a hook of a parameter."""
        number = _current_pass()
        if number == self._pass:
            return
        self._pass = number
        self._expecting[self._serial] = self
        _call_at_end(_end)


def _end() -> None:
    nodes, passes = _enclosing(sys._getframe())
    if nodes:  # the outermost node belongs to the outermost pass, which runs its hooks
        _call_after(nodes[-1])
    elif passes <= 1:
        _call_all()
    # Otherwise a hook has called backward(), and step() finishes what this pass has begun.


def _call_all() -> None:
    expecting = BackwardEnd._expecting
    errors: list[Exception] = []
    for serial in sorted(expecting):
        waiting = expecting.pop(serial)._waiting()
        try:
            if waiting is not None:
                waiting.backward_has_ended()
        except Exception as error:  # finish the others first
            errors.append(error)
    if errors:
        raise errors.pop(0)  # the error keeps this frame, which must not keep the error


def _enclosing(frame: FrameType | None) -> tuple[list[Any], int]:
    """Return the autograd nodes that are running, innermost first, and the number of passes."""
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
