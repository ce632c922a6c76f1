"""Load models whose optimizers are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from farandole.compression import AnyCompressor, NoneCompressor
from farandole.keras.optimizer import DistributedOptimizer, is_distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompressor = NoneCompressor,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model, and make its optimizer combine the gradients of all ranks.

    The optimizer keeps the state that was saved. A file does not contain the arguments of
    DistributedOptimizer(). So pass the arguments that differ from their defaults, such as
    backward_passes_per_step or op, to this function.

    Args:
        filepath: The file, as for keras.models.load_model().
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions that Keras does not know, by name.
        compression: As for DistributedOptimizer().
        legacy_opts: Ignored. Scripts that were written for Horovod pass it.
        options: Other arguments of DistributedOptimizer(). Without backward_passes_per_step, an
            optimizer that was saved with it averages the gradients of the passes.

    Example::

        model = hvd.load_model("model.keras", backward_passes_per_step=2)
    """
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
        if keras.config.backend() == "tensorflow":
            # The file has what "auto" meant for the optimizer that was saved. XLA of TensorFlow
            # cannot compile a distributed one.
            model.jit_compile = False
    return model
