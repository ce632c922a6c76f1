"""Broadcast parameters and optimizer state of torch to all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.torch import tensors as torch_tensors
from farandole.torch.operations import broadcast_async_
from farandole.torch.optimizer import (
    check_optimizer,
    keep_groups_and_state,
    match_state_strides,
    parameters_of,
    step_without_combining,
)
from farandole.training import training_state


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    *,
    process_set: Group = global_process_set,
) -> None:
    """Give all ranks root_rank's values, in place. Block until this rank has them.

    Args:
        params: `model.state_dict()`, pairs as from `model.named_parameters()`, or tensors alone.
            All ranks must give the same names, shapes and dtypes.
        root_rank: A rank of the world, which must be in the process_set.
        process_set: The group.
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
    """Give all ranks root_rank's optimizer state and options (learning rate, momentum ...), in
    place. Block until this rank has them.

    If only the root has state, as after it has loaded a checkpoint, the other ranks get the same
    state. If the root has no state yet, all ranks create the state with which a first step begins.
    Parameters and gradients do not change. Call broadcast_parameters() first, because some
    optimizers keep the first values of parameters. The objects `optimizer.state` and
    `optimizer.param_groups` are changed and not replaced, because a learning rate scheduler may
    hold them.

    Args:
        optimizer: A torch optimizer, distributed or not.
        root_rank: A rank of the world, which must be in the process_set.
        model: Ignored. Scripts that were written for Horovod pass it.
        process_set: The group.

    Raises:
        CallError: On all ranks, if the root cannot send its state (as with LBFGS), or another rank
            cannot load it. CallError is also a ValueError.
    """
    state = training_state.broadcast_optimizer_state(
        torch_tensors,
        broadcast_async_,
        lambda: _checked_optimizer(optimizer).state_dict(),
        lambda state: load_in_place(_checked_optimizer(optimizer), state),
        root_rank,
        process_set,
    )
    if not state.get("state", True):  # the program's own optimizer may lack this entry
        _make_state(optimizer)


def _checked_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    check_optimizer(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise CallError(
            "the history of LBFGS belongs to one closure; let each rank begin with a new optimizer"
        )
    return optimizer


def load_in_place(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state, and keep the objects `optimizer.state` and `optimizer.param_groups`: a
    learning rate scheduler may hold them, and so may the wrapped optimizer."""
    groups, old_state = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state)
    training_state.restore_dtypes(torch_tensors, optimizer, state)
    match_state_strides(optimizer)
    keep_groups_and_state(optimizer, groups, old_state)


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state with which a first step begins, if the optimizer can.

    Only the optimizer itself can create its state, so it makes a step with gradients of zeros, and
    with a `weight_decay` of 0. During this step, the parameters have their values, because some
    optimizers copy these values in their first step. If the step fails because the optimizer needs
    a closure or sparse gradients, the optimizer gets no state.
    """
    groups = optimizer.param_groups
    saved_options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    stepped_parameters = [p for p in parameters_of(groups) if p.requires_grad or p.grad is not None]
    saved_values = [(p, p.detach().clone(), p.grad) for p in stepped_parameters]
    try:
        for parameter in stepped_parameters:
            parameter.grad = torch.zeros_like(parameter).detach()
        for group in groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        with _without_step_hooks(optimizer):
            step_without_combining(optimizer)
    except Exception:
        optimizer.state.clear()
    finally:
        for parameter, value, gradient in saved_values:
            parameter.detach().copy_(value)
            parameter.grad = gradient
        for group, group_options in zip(groups, saved_options, strict=True):
            group.update(group_options)
    for group in groups:
        for parameter in group["params"]:
            if isinstance(state := optimizer.state.get(parameter), dict):
                _undo_first_step(state, group)


@contextlib.contextmanager
def _without_step_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Disable the step hooks of this optimizer within the context: the step is artificial, and a
    hook may, for example, count the steps or average the parameters."""
    hook_tables: list[dict[int, Any]] = [
        # An optimizer that wraps another one may lack these two attributes.
        getattr(optimizer, "_optimizer_step_pre_hooks", {}),
        getattr(optimizer, "_optimizer_step_post_hooks", {}),
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]
    saved_hooks = [dict(table) for table in hook_tables]
    for table in hook_tables:
        table.clear()
    try:
        yield
    finally:
        for table, entries in zip(hook_tables, saved_hooks, strict=True):
            table.update(entries)


def _undo_first_step(state: dict[str, Any], options: dict[str, Any]) -> None:
    """Reset the counters of steps, and the state that a first step sets in a special way."""
    for name, number in (("step", 0), ("mu_product", 1), ("eta", options.get("lr"))):
        if isinstance(state.get(name), torch.Tensor):
            state[name].fill_(number)
        elif name in state:
            state[name] = number
    if options.get("dampening") and "momentum_buffer" in state:
        state["momentum_buffer"] = None
