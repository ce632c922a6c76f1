"""The state of a training with torch: models, optimizers and samplers know how to be saved."""

from __future__ import annotations

import copy
from typing import Any

import torch

from farandole import lifecycle
from farandole.elastic import ObjectState
from farandole.objects import allgather_object, broadcast_object
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.state import broadcast_optimizer_state, broadcast_parameters, load_in_place


class StateHandler:
    """Saves, restores and sends one value; derive from it for types of your own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps a copy in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to that copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the value of rank 0. A call of all ranks."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """From now on for this value."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # The value may keep what it loads, and train on it.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """A torch.nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """A torch.optim.Optimizer, distributed or not."""

    def restore(self) -> None:
        load_in_place(self.value, copy.deepcopy(self._saved))

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """An ElasticSampler: what any rank has processed is processed."""

    def sync(self) -> None:
        states = allgather_object(self.value.state_dict(), name="elastic.sampler")
        processed = set().union(*(state["processed_indices"] for state in states))
        self.value.load_state_dict({**states[0], "processed_indices": processed})
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which handler TorchState uses for values of which type: the first that fits."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """For all TorchState objects made from now on."""
    global _registry  # noqa: PLW0603, Horovod's interface
    _registry = registry


class TorchState(ObjectState):
    """The state of a training: `TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)`.

    Each argument becomes an attribute. Models, optimizers and samplers are saved by their
    state_dict(), restored in place, and sent as tensors; others are copied, and sent pickled.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        values = {name: value for name, value in values.items() if value is not None}
        handlers = {name: _handler_of(value) for name, value in values.items()}
        self.__dict__["_handlers"] = {name: h for name, h in handlers.items() if h is not None}
        for name in self._handlers:
            self.__dict__[name] = values[name]
        objects = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, lifecycle.rank, **objects)

    _handlers: dict[str, StateHandler]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (handler := self._handlers.get(name)) is not None:
            handler.set_value(value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
