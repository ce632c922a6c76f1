"""Load models that have distributed optimizers."""

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
        options: Other arguments of DistributedOptimizer(). If an optimizer was saved with
            backward_passes_per_step, and this argument is not given here, the gradients of the
            passes are averaged.

    Example::

        model = hvd.load_model("model.keras", backward_passes_per_step=2)
    """
    custom_classes = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**custom_classes, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
        if keras.config.backend() == "tensorflow":
            # The file contains the value to which jit_compile="auto" was resolved for the saved
            # optimizer. It may be True, but XLA cannot compile a distributed optimizer.
            model.jit_compile = False
    return model
