"""Notify listeners when a backward pass has ended, before backward() returns.

Autograd has callbacks for the end of a pass, but two cases need more. First, a checkpoint with
use_reentrant=True runs a backward pass within another one, and autograd calls back at the end of
the inner pass. This module notifies only at the end of the outermost pass. Second, several
optimizers may wait for one pass. This module notifies them in the order in which they were made,
which is the same on all ranks.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from farandole.torch.dynamo import outside_dynamo

_current_pass_number: Callable[[], int] = torch._C._current_graph_task_id
_queue_callback: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)
# _running_nodes() finds nested passes by the stack frames with these code objects.
_RUN_BACKWARD_CODE = torch.autograd.graph._engine_run_backward.__code__
_APPLY_CODE = torch.autograd.function.BackwardCFunction.apply.__code__


class Listener(Protocol):
    def on_backward_end(self) -> None: ...


class BackwardEndNotifier:
    """Notifies one listener when the current backward pass has ended. It does not keep the listener
    alive."""

    _serials = itertools.count()

    def __init__(self, listener: Listener) -> None:
        self._listener = weakref.ref(listener)
        self._serial = next(self._serials)
        self._pass_number = -1

    def request_callback(self) -> None:
        """Notify the listener at the end of the current pass. Call this in a parameter's hook."""
        pass_number = _current_pass_number()
        if pass_number == self._pass_number:
            return
        # If an earlier pass with a request has failed, the request is still in _requests: remove
        # it.
        former_notifiers = _requests.get(self._pass_number, {})
        former_notifiers.pop(self._serial, None)
        if not former_notifiers:
            _requests.pop(self._pass_number, None)
        self._pass_number = pass_number
        _request_notification({self._serial: self})

    def notify(self) -> None:
        listener = self._listener()
        if listener is not None:
            listener.on_backward_end()


# The keys are serial numbers. The notifiers notify their listeners in the order of these numbers,
# which is the order in which the notifiers were made.
Notifiers = dict[int, BackwardEndNotifier]

# The notifiers of each pass, by the number of the pass. Several threads may run passes at the same
# time, and one pass may use several threads.
_requests: dict[int, Notifiers] = {}


class _PostponedNotifiers(threading.local):
    """The notifiers that this thread uses at the end of a later pass, because a hook has called
    backward()."""

    def __init__(self) -> None:
        self.notifiers: Notifiers = {}


_postponed = _PostponedNotifiers()


def _request_notification(notifiers: Notifiers) -> None:
    """Notify the listeners at the end of the current pass."""
    pass_number = _current_pass_number()
    new_notifiers: Notifiers = {}
    # Another thread of the pass may execute this line, too, but setdefault() is atomic.
    pass_notifiers = _requests.setdefault(pass_number, new_notifiers)
    if pass_notifiers is new_notifiers:
        _queue_callback(functools.partial(_on_pass_end, pass_number))
    pass_notifiers.update(notifiers)


@outside_dynamo
def _on_pass_end(pass_number: int) -> None:
    notifiers = _requests.pop(pass_number, {})
    nodes, pass_count = _running_nodes(sys._getframe())
    if nodes:  # notify after the outermost node of the outermost pass
        _notify_after_node(nodes[-1], notifiers)
    elif pass_count <= 1:
        notifiers.update(_postponed.notifiers)
        _postponed.notifiers.clear()
        _notify(notifiers)
    else:  # a hook has called backward(): notify at the end of a later pass
        _postponed.notifiers.update(notifiers)


def _notify(notifiers: Notifiers) -> None:
    errors: list[Exception] = []
    for serial in sorted(notifiers):
        try:
            notifiers[serial].notify()
        except Exception as error:  # notify the other listeners before raising
            errors.append(error)
    if errors:
        raise errors.pop(0)  # pop(), so that this frame does not keep the error


def _running_nodes(frame: FrameType | None) -> tuple[list[Any], int]:
    """Return the autograd nodes in Python that are running, innermost first, and the number of
    passes that are running."""
    nodes, pass_count = [], 0
    while frame is not None:
        if frame.f_code is _APPLY_CODE:
            nodes.append(frame.f_locals["self"])
        elif frame.f_code is _RUN_BACKWARD_CODE:
            pass_count += 1
        frame = frame.f_back
    return nodes, pass_count


def _notify_after_node(node: Any, notifiers: Notifiers) -> None:
    def request_and_remove_hook(*_: object) -> None:
        hook.remove()
        _request_notification(notifiers)

    hook = node.register_hook(request_and_remove_hook)
