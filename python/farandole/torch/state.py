"""Torch's part in giving all ranks the same parameters and optimizer state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from farandole import training_state
from farandole.errors import CallError
from farandole.group import Group, global_process_set
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
    training_state.broadcast_parameters(
        torch_tensors, broadcast_async_, params, root_rank, process_set
    )


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
    state = training_state.broadcast_optimizer_state(
        torch_tensors,
        broadcast_async_,
        lambda: _checked(optimizer).state_dict(),
        lambda state: load_in_place(_checked(optimizer), state),
        root_rank,
        process_set,
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
