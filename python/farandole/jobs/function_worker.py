"""The program of a worker that calls a function: `python -m farandole.jobs.function_worker`.

The worker receives the function and sends the result on a socket, which it inherits from the
program that has started the job. The function and the result are pickled, and unpickling runs code
that the other side chooses. Only that program, its launcher, this worker, and their forked children
hold an end of the socket pair.
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
from farandole.lifecycle import describe_safely, last_epoch_rank_and_size

# A buffer of at least this size is sent as a part of its own. Smaller buffers stay in the pickle.
_SEPARATE_PART_BYTES_MIN = 1 << 16


def main() -> None:
    with _inherited_channel() as channel:
        call = IncomingMessage()
        if skip_to_mark(channel):
            call.advance(channel)
        if not call.complete:
            sys.exit("the program that has started this job has ended")
        try:
            outcome = _call_function(call.parts)
        except SystemExit:
            raise
        except BaseException as error:
            with suppress(OSError):  # the program that has started this job may have ended
                OutgoingMessage([_failure_message(error)]).advance(channel)
            sys.excepthook = partial(_show_without_own_frames, sys.excepthook)
            raise
        OutgoingMessage(outcome).advance(channel)


def _inherited_channel() -> socket.socket:
    """Return the socket to the program that has started the job. Processes that the function starts
    do not inherit the socket."""
    channel = socket.socket(fileno=int(os.environ.pop("FARANDOLE_CHANNEL_DESCRIPTOR")))
    channel.set_inheritable(False)
    return channel


def _call_function(call: list[bytearray]) -> list[bytes | memoryview]:
    """Call the function and return the message with its result. Clear `call` before calling the
    function, because the function may need this memory."""
    prefix, path = json.loads(call[0])
    if prefix == sys.prefix:  # the caller's sys.path is correct only for the same Python
        sys.path[:] = path
    function, args, kwargs = cloudpickle.loads(call[1])
    call.clear()
    return packed_result(function(*args, **kwargs))


def packed_result(result: Any) -> list[bytes | memoryview]:
    """Return the message with a result: its description, its pickle, and large arrays without a
    copy.

    Raise CallError if the result cannot be pickled.
    """
    parts: list[memoryview] = []

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes >= _SEPARATE_PART_BYTES_MIN:
            parts.append(view)
        return view.nbytes < _SEPARATE_PART_BYTES_MIN

    type_name = type(result).__qualname__
    try:
        content = cloudpickle.dumps(result, protocol=5, buffer_callback=is_in_band)
    except Exception as error:
        raise CallError(
            f"the result of rank {os.environ.get('FARANDOLE_RANK')}, of the type {type_name}, "
            f"cannot be pickled: {type(error).__name__}: {error}"
        ) from None
    description = {"kind": "result", "type": type_name, "place": last_epoch_rank_and_size()}
    return [json.dumps(description).encode(), content, *parts]


def _failure_message(error: BaseException) -> bytes:
    """Describe an exception as text, because some exceptions cannot be pickled."""
    stack = _without_own_frames(error.__traceback__)

    def format_trace(error: BaseException) -> str:
        return "".join(traceback.format_exception(type(error), error, stack))

    return json.dumps(
        {
            "kind": "failure",
            "type": type(error).__name__,
            "text": describe_safely(error, str),
            "traceback": describe_safely(error, format_trace),
        }
    ).encode()


def _without_own_frames(stack: TracebackType | None) -> TracebackType | None:
    """Return the part of the traceback that begins in the function; None if the function was not
    called."""
    function_frames = stack
    while stack is not None:
        if stack.tb_frame.f_code.co_filename == __file__:
            function_frames = stack.tb_next
        stack = stack.tb_next
    return function_frames


def _show_without_own_frames(
    show_exception: Callable[..., object],
    error_type: type[BaseException],
    error: BaseException,
    stack: TracebackType | None,
) -> None:
    """Show an exception without our frames. Also remove these frames from the exception's
    traceback, which the launcher gets later."""
    error.__traceback__ = _without_own_frames(stack)
    show_exception(error_type, error, error.__traceback__)


if __name__ == "__main__":
    main()
