"""Progress messages of `./dev`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_S = 15


def say(text: str) -> None:
    print(f"[dev] {text}", flush=True)


@contextmanager
def heartbeat(what: str, interval_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Print `what`, and print it again with the elapsed time while the block runs, because apt and
    pip print nothing."""
    say(what)
    is_over, start = threading.Event(), time.monotonic()

    def beat() -> None:
        while not is_over.wait(interval_s):
            say(f"still {what} ({time.monotonic() - start:.0f} s)")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
