"""The optimizers of a model, and the variables that all ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers in the attributes of the model, also those in a list, tuple or dict.
    The attributes may have any name, as in the model of a GAN. They are sorted by name, because
    ranks may have set them in different orders."""
    values = [value for _, value in sorted(vars(model).items())]
    for value in values.copy():
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, (list, tuple)):
            values += value
    return distinct(value for value in values if isinstance(value, keras.optimizers.Optimizer))


def variables_of(model: Any, optimizers: Sequence[Any] | None = None) -> list[Any]:
    """Return the weights of a model and the variables of its optimizers. The states of seed
    generators are left out, so that dropout differs between the ranks.

    If `optimizers` is None, use all optimizers of the model."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # during fit(), the values are in other arrays of JAX
    chosen_optimizers = optimizers_of(model) if optimizers is None else optimizers
    return distinct(
        [
            *model.weights,
            *(variable for optimizer in chosen_optimizers for variable in optimizer.variables),
        ]
    )


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return each object once."""
    return list({id(value): value for value in values}.values())


def build_optimizer(model: Any, optimizer: Any) -> bool:
    """Create the variables of the optimizer if the variables of the model exist. Return whether
    both exist now. If the optimizer's variables do not exist, fit() creates them; on the TensorFlow
    backend, it does so only in the first step."""
    is_model_built = all(layer.built for layer in model._flatten_layers())
    if optimizer is None:
        return is_model_built
    if is_model_built and not optimizer.built:
        optimizer.build(model.trainable_variables)
    return bool(model.built and optimizer.built)
