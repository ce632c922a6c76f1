"""The state of a training with torch: models, optimizers, gradient scalers and samplers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch

from farandole.elastic import HandledState, HandlerRegistry, StateDictHandler
from farandole.elastic_samples import SamplesHandler
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.optimizer import AnyDistributedOptimizer, parameters_of
from farandole.torch.state import broadcast_optimizer_state, broadcast_parameters, load_in_place


class ModelStateHandler(StateDictHandler):
    """Handle a torch.nn.Module."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def restore(self) -> None:
        super().restore()
        _drop_gradients(self.value.parameters())

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateDictHandler):
    """Handle a torch.optim.Optimizer, distributed or not."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def check(self) -> None:
        if isinstance(self.value, AnyDistributedOptimizer):
            self.value.check_not_between_passes()

    def restore(self) -> None:
        load_in_place(self.value, self.saved())
        _drop_gradients(parameters_of(self.value.param_groups))

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class GradScalerHandler(StateDictHandler):
    """Handle a torch.amp.GradScaler."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        super().__init__(scaler)

    def restore(self) -> None:
        super().restore()
        # load_state_dict() does not reset the states of the optimizers. If the failed step has
        # unscaled its gradients, the scaler would not unscale the gradients of the next step.
        if self.value.is_enabled():  # only an enabled scaler has these states
            self.value._per_optimizer_states.clear()


def _drop_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Drop gradients that a failed step has left, because the next backward() would add to them."""
    for parameter in parameters:
        parameter.grad = None


class SamplerStateHandler(SamplesHandler):
    """Handle an ElasticSampler: all ranks get rank 0's epoch and its count of processed samples."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)


@runtime_checkable
class _HasStateDict(Protocol):
    """An object such as a learning rate scheduler. TorchState saves only its state_dict(), because
    a copy of the object would use a copy of the optimizer."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


_registry: HandlerRegistry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> HandlerRegistry:
    """Return pairs of a type and its handler. TorchState uses the first pair that fits a value."""
    return _registry


def set_handler_registry(registry: HandlerRegistry) -> None:
    """Set the pairs for all TorchState objects that are made from now on."""
    global _registry  # noqa: PLW0603, Horovod's interface
    _registry = registry


class TorchState(HandledState):
    """Keep the state of a training: `TorchState(model, optimizer, sampler=sampler, epoch=0)`.

    Each argument becomes an attribute. Models, optimizers, samplers, and all other objects with
    state_dict() and load_state_dict(), such as learning rate schedulers, are saved by their
    state_dict(), and restored in place. restore() also drops the gradients of models and
    optimizers, because a failed step may have left some. The tensors of models and optimizers are
    sent as tensors. Other values are saved as copies, and sent as pickled objects.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        model_and_optimizer = {"model": model, "optimizer": optimizer}
        self.__dict__.update(model_and_optimizer)  # as in Horovod, `model` is None if there is none
        given_values = {
            name: value for name, value in model_and_optimizer.items() if value is not None
        }
        other_handlers: HandlerRegistry = [
            (torch.amp.GradScaler, GradScalerHandler),
            (_HasStateDict, StateDictHandler),
        ]
        super().__init__([*_registry, *other_handlers], given_values | kwargs)
