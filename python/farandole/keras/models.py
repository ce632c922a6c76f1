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
) -> Any:
    """Load a model, and make its optimizer combine the gradients of all ranks.

    The optimizer keeps the state that was saved, and its other options.

    Args:
        filepath: The file, as for keras.models.load_model().
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions that Keras does not know, by name.
        compression: As for DistributedOptimizer().
        legacy_opts: Ignored. Scripts that were written for Horovod pass it.
    """
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
