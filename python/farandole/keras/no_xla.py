"""Do not let XLA compile models with a distributed optimizer, on the TensorFlow backend of Keras.

XLA of TensorFlow cannot compile operations of other libraries. With jit_compile="auto", Keras uses
XLA if the machine has a GPU and XLA can compile the layers. Keras does not check the optimizer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras

from farandole.errors import CallError
from farandole.keras.variables import optimizers_of

_RESOLVE_METHOD = "_resolve_auto_jit_compile"  # a method of keras.Model that is not public
_FRAMES_MAX = 30  # more than the frames from train_step() to the optimizer's apply()


@functools.cache  # this function runs once in a process
def disable_auto_xla(is_distributed: Callable[[Any], bool]) -> None:
    """Let jit_compile="auto" mean False for models that have a distributed optimizer."""
    resolve = getattr(keras.Model, _RESOLVE_METHOD, None)
    if keras.config.backend() != "tensorflow" or resolve is None:
        return

    @functools.wraps(resolve)
    def resolve_without_xla(model: Any) -> Any:
        return False if any(map(is_distributed, optimizers_of(model))) else resolve(model)

    setattr(keras.Model, _RESOLVE_METHOD, resolve_without_xla)


def check_no_xla(optimizer: Any) -> None:
    """Raise CallError if the caller is the training step of a model that has this optimizer, and
    XLA will compile that step."""
    if keras.config.backend() != "tensorflow":
        return
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        model = frame.f_locals.get("self")
        if isinstance(model, keras.Model) and any(
            candidate is optimizer for candidate in optimizers_of(model)
        ):
            if model.jit_compile and not model.run_eagerly:
                raise CallError(
                    "XLA of TensorFlow cannot compile the calls of a distributed optimizer: use "
                    'model.compile(..., jit_compile=False), or "auto"'
                )
            return
        frame = frame.f_back
        if frame is None:
            return
