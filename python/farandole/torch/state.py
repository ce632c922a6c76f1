"""The same start on every rank: one rank's parameters and optimizer state for all.

The state travels pickled, as other objects do, and its tensors as tensors.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cloudpickle
import torch

from farandole import arguments, lifecycle
from farandole.arrays import can_be_sent
from farandole.comparison import attempt, failures, table
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle
from farandole.objects import broadcast_object
from farandole.torch import tensors as torch_tensors
from farandole.torch.operations import broadcast_async_
from farandole.torch.optimizer import check_optimizer, parameters_of, step_alone


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    *,
    process_set: Group = global_process_set,
) -> None:
    """Gives all ranks root_rank's values, in place.

    params: `model.state_dict()`, pairs as from `model.named_parameters()`, or tensors alone.
    """
    for name, tensor in (pairs := _pairs(params)):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise CallError(
                f"params has {name!r} of the type {type(tensor).__name__}, but only tensors can be "
                "sent: leave it out, and use broadcast_object() for it"
            )
    handles = [
        broadcast_async_(tensor, root_rank, f"parameters.{name}", process_set)
        for name, tensor in pairs
        if tensor is not None
    ]
    BatchHandle(handles).wait()  # all of them, also when one has failed: the names shall be free


def _pairs(params: Any) -> list[tuple[str, Any]]:
    values = params.items() if isinstance(params, Mapping) else params
    pairs = list(values) if isinstance(values, Iterable) else [values]
    if not isinstance(params, torch.Tensor):
        pairs = [(str(i), p) if isinstance(p, torch.Tensor) else p for i, p in enumerate(pairs)]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise CallError(
            "params must be model.state_dict() or model.named_parameters(); got a "
            f"{type(params).__name__}"
        )
    return pairs


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    *,
    process_set: Group = global_process_set,
) -> None:
    """Gives all ranks root_rank's optimizer state and options (learning rate, momentum ...).

    State that only the root has, as after loading a checkpoint there, is made on the others. If the
    root has none yet, all make what a first step would begin with, and trained parameters without a
    gradient get one of zeros. Parameters do not change, and who holds the optimizer's state or
    param_groups holds them still, as a learning rate scheduler does. `model` is there for scripts
    that give it, and has no meaning.

    Raises CallError, a ValueError, on all ranks when the root cannot send its state (as for LBFGS)
    or another cannot take it.
    """
    if lifecycle.rank() == arguments.rank_number(root_rank):
        state = _send(optimizer, root_rank, process_set)
        problem = ""
    else:
        state = {}
        data, tensors = _receive(root_rank, process_set)

        def take() -> None:
            state.update(_Unpickler(data, tensors).load())
            load_in_place(_checked(optimizer), state)

        problem = attempt(take)
    if problems := failures(problem, "state.taken", process_set):
        raise CallError(
            f"the optimizer state of rank {root_rank} was not taken by all:\n{table(problems)}"
        )
    if not state["state"]:
        _make_state(optimizer)


def _checked(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    check_optimizer(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise CallError(
            "the history of LBFGS belongs to one closure; let each rank begin with a new optimizer"
        )
    return optimizer


def load_in_place(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """optimizer.load_state_dict(state) for those, too, who hold its state and its param_groups: the
    wrapped optimizer, and a learning rate scheduler that was made from that."""
    groups, values = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state)
    loaded_groups, loaded_values = optimizer.param_groups, optimizer.state
    for group, loaded in zip(groups, loaded_groups, strict=True):
        if loaded is not group:
            group.clear()
            group.update(loaded)
    loaded_groups[:] = groups  # an optimizer within this one may hold that list
    if loaded_values is not values:
        values.clear()
        values.update(loaded_values)
    for name, value in (("param_groups", groups), ("state", values)):
        with contextlib.suppress(AttributeError):  # that of an optimizer within cannot be set
            setattr(optimizer, name, value)


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """By a step of zeros, as only the optimizer knows its state; of parameters of zeros, too, so
    that weight decay leaves nothing in it. Where that cannot be, there is none: some want a
    closure, or sparse gradients."""
    groups = optimizer.param_groups
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    stepped = [p for p in parameters_of(groups) if p.requires_grad or p.grad is not None]
    before = [(p, p.detach().clone(), p.grad) for p in stepped]
    try:
        for parameter in stepped:
            parameter.detach().zero_()
            parameter.grad = torch.zeros_like(parameter).detach()
        step_alone(optimizer)
    except Exception:
        optimizer.state.clear()
    finally:
        for parameter, value, gradient in before:
            parameter.detach().copy_(value)
            if gradient is not None:
                parameter.grad = gradient
        for group, its in zip(groups, options, strict=True):
            group.update(its)
    for group in groups:
        for parameter in group["params"]:
            if isinstance(state := optimizer.state.get(parameter), dict):
                _begin_anew(state, group)


def _begin_anew(state: dict[str, Any], options: dict[str, Any]) -> None:
    """Takes back what counts the step, or is another thing in the first one."""
    for name, number in (("step", 0), ("mu_product", 1), ("eta", options.get("lr"))):
        if isinstance(state.get(name), torch.Tensor):
            state[name].fill_(number)
        elif name in state:
            state[name] = number
    if options.get("dampening") and "momentum_buffer" in state:
        state["momentum_buffer"] = None


class _Pickler(cloudpickle.Pickler):
    """Leaves out the tensors that the engine can send."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}  # by id(): a tensor may occur several times

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in (torch.Tensor, torch.nn.Parameter) or not can_be_sent(
            torch_tensors, obj
        ):
            return None
        if id(obj) not in self._places:
            self._places[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._places[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, place: int) -> torch.Tensor:
        return self._tensors[place]


def _send(optimizer: torch.optim.Optimizer, root_rank: int, process_set: Group) -> dict[str, Any]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    state: dict[str, Any] = {}

    def take_apart() -> None:
        state.update(_checked(optimizer).state_dict())
        pickler.dump(state)

    problem = attempt(take_apart)
    layouts = [(tensor.dtype, tensor.shape) for tensor in pickler.tensors]
    broadcast_object((problem, file.getvalue(), layouts), root_rank, "state.parts", process_set)
    _raise(problem, root_rank)
    tensors = [tensor.detach().contiguous() for tensor in pickler.tensors]
    _broadcast_all(tensors, root_rank, process_set)
    return state


def _receive(root_rank: int, process_set: Group) -> tuple[bytes, list[torch.Tensor]]:
    """The pickled state, and the tensors that it lacks."""
    problem, data, layouts = broadcast_object(None, root_rank, "state.parts", process_set)
    _raise(problem, root_rank)
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in layouts]
    _broadcast_all(tensors, root_rank, process_set)
    return data, tensors


def _raise(problem: str, root_rank: int) -> None:
    if problem:
        raise CallError(f"the optimizer state of rank {root_rank} cannot be sent: {problem}")


def _broadcast_all(tensors: list[torch.Tensor], root_rank: int, process_set: Group) -> None:
    handles = [
        broadcast_async_(tensor, root_rank, f"state.{index}", process_set)
        for index, tensor in enumerate(tensors)
    ]
    BatchHandle(handles).wait()
