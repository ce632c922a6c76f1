"""The program of a worker that calls a function: `python -m farandole.jobs.function_worker`.

It receives the function and sends its result on a socket that it inherits from the program that has
started the job. Both are pickled, and unpickling runs code that the other side chooses. Only that
program, its launcher, this worker, and their forked children hold an end of the socket pair.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import cloudpickle

from farandole.errors import CallError
from farandole.jobs.channel import IncomingMessage, OutgoingMessage, skip_to_mark
from farandole.lifecycle import described, last_place

# A buffer of at least this size is sent as a part of its own. Smaller buffers stay in the pickle.
_OWN_PART_BYTES_MIN = 1 << 16


def main() -> None:
    with _inherited_channel() as channel:
        call = IncomingMessage()
        if skip_to_mark(channel):
            call.advance(channel)
        if not call.complete:
            sys.exit("the program that has started this job has ended")
        try:
            outcome = _outcome_of(call.parts)
        except SystemExit:
            raise
        except BaseException as error:
            with suppress(OSError):  # the program that has started us may be gone
                OutgoingMessage([_failure(error)]).advance(channel)
            sys.excepthook = partial(_show_without_own_frames, sys.excepthook)
            raise
        OutgoingMessage(outcome).advance(channel)


def _inherited_channel() -> socket.socket:
    """Return the socket to the program that has started the job. Processes that the function starts
    do not inherit the socket."""
    channel = socket.socket(fileno=int(os.environ.pop("FARANDOLE_CHANNEL_DESCRIPTOR")))
    channel.set_inheritable(False)
    return channel


def _outcome_of(call: list[bytearray]) -> list[bytes | memoryview]:
    """Call the function and return the message with its result. Clear `call` before that, because
    the function may need the memory."""
    prefix, path = json.loads(call[0])
    if prefix == sys.prefix:  # the caller's path is correct only for the same Python
        sys.path[:] = path
    function, args, kwargs = cloudpickle.loads(call[1])
    call.clear()
    return packed(function(*args, **kwargs))


def packed(result: Any) -> list[bytes | memoryview]:
    """Return the message with a result: its description, its pickle, and large arrays without a
    copy.

    Raise CallError if the result cannot be pickled.
    """
    parts: list[memoryview] = []

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes >= _OWN_PART_BYTES_MIN:
            parts.append(view)
        return view.nbytes < _OWN_PART_BYTES_MIN

    kind = type(result).__qualname__
    try:
        content = cloudpickle.dumps(result, protocol=5, buffer_callback=is_in_band)
    except Exception as error:
        raise CallError(
            f"the result of rank {os.environ.get('FARANDOLE_RANK')}, of the type {kind}, cannot be "
            f"pickled: {type(error).__name__}: {error}"
        ) from None
    description = {"kind": "result", "type": kind, "place": last_place()}
    return [json.dumps(description).encode(), content, *parts]


def _failure(error: BaseException) -> bytes:
    """Describe an exception in words, because it may be impossible to pickle."""
    stack = _without_own_frames(error.__traceback__)

    def trace(error: BaseException) -> str:
        return "".join(traceback.format_exception(type(error), error, stack))

    return json.dumps(
        {
            "kind": "failure",
            "type": type(error).__name__,
            "text": described(error, str),
            "traceback": described(error, trace),
        }
    ).encode()


def _without_own_frames(stack: TracebackType | None) -> TracebackType | None:
    """Return the part of the traceback that begins in the function; None if the function was not
    called."""
    part = stack
    while stack is not None:
        if stack.tb_frame.f_code.co_filename == __file__:
            part = stack.tb_next
        stack = stack.tb_next
    return part


def _show_without_own_frames(
    show: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    stack: TracebackType | None,
) -> None:
    """Show an exception without our frames. Also remove these frames from the exception's
    traceback, which the launcher gets later."""
    error.__traceback__ = _without_own_frames(stack)
    show(kind, error, error.__traceback__)


if __name__ == "__main__":
    main()
