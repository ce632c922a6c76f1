"""Run functions in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start target(*args) in a thread and return the thread. If `silent`, hide its exceptions."""
    call = partial(_run_silently, target) if silent else target
    thread = threading.Thread(target=call, args=tuple(args), name=name, daemon=daemon)
    thread.start()
    return thread


def _run_silently(target: Callable[..., Any], *args: Any) -> None:
    with suppress(Exception):
        target(*args)
