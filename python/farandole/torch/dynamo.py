"""Keep Dynamo, the tracer of torch.compile, out of functions that call the engine.

While Dynamo traces, it calls the engine's functions in a wrong way. A function that is decorated
here runs as usual, between two compiled parts of the program.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def _tracer_after_load(wrapper: Any) -> object:
    """Return the callback that traces the frames of this thread, or None. The first call after the
    program has loaded Dynamo also keeps Dynamo out of `wrapper`."""
    global _tracer  # noqa: PLW0603 - from then on, a shorter function is called
    if "torch._dynamo" not in sys.modules:
        return None
    torch._dynamo.eval_frame.skip_code(wrapper.__code__)
    # Before 2.6, torch has no function that says whether it traces, so assume that it does.
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)
    _tracer = lambda _: callback()  # noqa: E731
    return callback()


_tracer: Callable[[Any], object] = _tracer_after_load


def outside_dynamo(function: Function) -> Function:
    """Decorate a function so that Dynamo does not trace it."""
    disabled: Any = None

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        nonlocal disabled
        # disable() makes each call a microsecond longer, so use it only if Dynamo may trace.
        if _tracer(run) is None:
            return function(*arguments, **options)
        disabled = disabled or torch.compiler.disable(function)
        return disabled(*arguments, **options)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]
