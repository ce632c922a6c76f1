"""Tell all ranks after the same step that one of them was asked to end, so that they can save a
checkpoint together."""

from __future__ import annotations

import signal
import threading
from array import array
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

from farandole import arguments, core
from farandole.calls import run
from farandole.errors import CallError
from farandole.group import Group, global_process_set

CALL_NAME = "preemption_notice"


class PreemptionNotice:
    """Notice that a scheduler asks the job to end, on all ranks after the same step.

    Slurm, Kubernetes and clouds send SIGTERM before they take a machine away. `farandole run`
    passes the signal on to the workers of all hosts. But the ranks receive it at different times,
    or only some of them receive it. This class catches the signal on the ranks that get it, and
    :meth:`received` gives all ranks the same answer.

    Use it in a `with` block in the main thread. The end of the block restores the former signal
    handlers.

    Args:
        signals: The signals to catch.
        process_set: The ranks that call received() together; by default all ranks.

    Raises:
        CallError: `signals` is not a list of signals, or this is not the main thread.

    Example::

        with hvd.PreemptionNotice() as notice:
            for batch in batches:
                train(batch)
                if notice.received():
                    save_checkpoint()
                    break
    """

    def __init__(
        self,
        signals: Iterable[int] = (signal.SIGTERM,),
        process_set: Group = global_process_set,
    ) -> None:
        try:
            self._signals = [signal.Signals(number) for number in signals]
        except (TypeError, ValueError):
            raise CallError(
                "signals must be a list of signals, such as [signal.SIGTERM, signal.SIGUSR1]; got "
                f"{signals!r}"
            ) from None
        self._group = process_set
        self._former_handlers: dict[int, Any] = {}
        self._has_received = 0  # 1 if this rank has received a signal

    def __enter__(self) -> PreemptionNotice:
        if threading.current_thread() is not threading.main_thread():
            raise CallError(
                "PreemptionNotice can catch signals in the main thread only: enter its `with` "
                "block there"
            )
        if self._former_handlers:
            raise CallError("this PreemptionNotice is in use: make another one for another block")
        for number in dict.fromkeys(self._signals):
            try:
                self._former_handlers[number] = signal.signal(number, self._handle_signal)
            except OSError as error:
                self._restore()
                raise CallError(f"{number.name} cannot be caught: {error}") from None
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former_handlers.items():
            # None means that Python did not install this handler, and cannot install it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former_handlers = {}

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._has_received = 1

    def received(self) -> bool:
        """Return True on all ranks if any rank received a signal before it made this call.

        All ranks must call this method the same number of times, such as once after each step. It
        makes an allreduce of one byte, and blocks until all ranks have called it.

        Raises:
            GroupLostError: A rank has left or died.
        """
        # Copy the flag, because a signal may change it during the call, and all ranks must read the
        # same value of this rank.
        own_flag, any_flag = array("B", [self._has_received]), array("B", [0])
        addresses = own_flag.buffer_info()[0], any_flag.buffer_info()[0]
        view = core.BufferView(core.dtypes["uint8"], (1,), *addresses)
        reduce_op, group = core.reduce_ops["max"], arguments.group_number(self._group)
        run(core.allreduce(CALL_NAME, group, view, reduce_op, 1.0, 1.0), (own_flag, any_flag))
        return bool(any_flag[0])
