"""The errors of PreemptionNotice. Each case is a call that must fail, with the whole text of its
error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import farandole


def cases() -> Iterator[tuple[Callable[[], object], str]]:
    yield (
        lambda: farandole.PreemptionNotice(3),  # type: ignore[arg-type]
        "signals must be a list of signals, such as [signal.SIGTERM, signal.SIGUSR1]; got 3",
    )
    yield (
        farandole.PreemptionNotice([signal.SIGKILL]).__enter__,
        "SIGKILL cannot be caught: [Errno 22] Invalid argument",
    )
    previous_handler = signal.getsignal(signal.SIGUSR2)
    with farandole.PreemptionNotice([signal.SIGUSR2, signal.SIGUSR2]):
        assert signal.getsignal(signal.SIGUSR2) != previous_handler
    assert signal.getsignal(signal.SIGUSR2) == previous_handler
    with farandole.PreemptionNotice([signal.SIGUSR1]) as notice:
        yield (
            notice.__enter__,
            "this PreemptionNotice is in use: make another one for another block",
        )
    with mock.patch.object(threading, "current_thread", lambda: None):
        yield (
            notice.__enter__,
            "PreemptionNotice can catch signals in the main thread only: enter its `with` "
            "block there",
        )
