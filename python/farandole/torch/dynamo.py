"""Keep Dynamo, the tracer of torch.compile, out of functions that call the engine.

While Dynamo traces, it calls the engine's functions in a wrong way. A function that is decorated
with outside_dynamo() runs as usual, between two compiled parts of the program.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def _get_tracer_after_load(wrapper: Any) -> object:
    """Return the callback by which Dynamo traces the frames of this thread, or None. The first call
    of this function after the program has loaded Dynamo also keeps Dynamo out of `wrapper`."""
    global _get_current_tracer  # noqa: PLW0603 - from then on, a shorter function is called
    if "torch._dynamo" not in sys.modules:
        return None
    torch._dynamo.eval_frame.skip_code(wrapper.__code__)
    # torch before 2.6 cannot say whether Dynamo traces this thread, so assume that it does.
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)
    _get_current_tracer = lambda _: callback()  # noqa: E731
    return callback()


_get_current_tracer: Callable[[Any], object] = _get_tracer_after_load


def outside_dynamo(function: Function) -> Function:
    """Decorate a function so that Dynamo does not trace it."""
    untraced_function: Any = None

    @functools.wraps(function)
    def run_untraced(*arguments: Any, **options: Any) -> Any:
        nonlocal untraced_function
        # disable() makes each call a microsecond longer, so use it only if Dynamo may trace.
        if _get_current_tracer(run_untraced) is None:
            return function(*arguments, **options)
        untraced_function = untraced_function or torch.compiler.disable(function)
        return untraced_function(*arguments, **options)

    run_untraced._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run_untraced  # type: ignore[return-value]
