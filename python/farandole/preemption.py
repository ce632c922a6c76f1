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

NAME = "preemption_notice"


class PreemptionNotice:
    """Notice that a scheduler asks the job to end, on all ranks after the same step.

    Slurm, Kubernetes and clouds send SIGTERM before they take a machine away. `farandole run`
    passes the signal on to the workers of all hosts. But the ranks receive it at different times,
    or only some of them receive it. This class catches the signal on the ranks that get it, and
    :meth:`received` gives all ranks the same answer.

    Use it in a `with` block in the main thread. At the end of the block, the former signal handlers
    are back.

    Args:
        signals: The signals to catch.
        process_set: The ranks that ask together; by default all ranks.

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
        self._former: dict[int, Any] = {}
        self._received = 0  # 1 if this rank has received a signal

    def __enter__(self) -> PreemptionNotice:
        if threading.current_thread() is not threading.main_thread():
            raise CallError(
                "PreemptionNotice can catch signals in the main thread only: enter its `with` "
                "block there"
            )
        if self._former:
            raise CallError("this PreemptionNotice is in use: make another one for another block")
        for number in dict.fromkeys(self._signals):
            try:
                self._former[number] = signal.signal(number, self._notice)
            except OSError as error:
                self._restore()
                raise CallError(f"{number.name} cannot be caught: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            # None: the handler was not installed from Python, so Python cannot install it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._received = 1

    def received(self) -> bool:
        """Return True on all ranks if one of them has received a signal before it made this call.

        All ranks must call this method equally often, for example once after each step. The method
        makes an allreduce of one byte, and blocks until all ranks have called it.

        Raises:
            GroupLostError: A rank has left or died.
        """
        # A copy, because a signal may come during the call. Then other ranks may already have read
        # the value of this rank, and it must stay the same for all of them.
        given, answer = array("B", [self._received]), array("B", [0])
        addresses = given.buffer_info()[0], answer.buffer_info()[0]
        view = core.BufferView(core.dtypes["uint8"], (1,), *addresses)
        operator, number = core.reduce_ops["max"], arguments.group_number(self._group)
        run(core.allreduce(NAME, number, view, operator, 1.0, 1.0), (given, answer))
        return bool(answer[0])
