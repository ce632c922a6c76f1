"""The same start on every rank: one rank's parameters and optimizer state for all.

The structure of the state travels as JSON, its tensors as tensors; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from farandole import arguments, lifecycle, structure
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.handle import BatchHandle
from farandole.torch.operations import broadcast_, broadcast_async_
from farandole.torch.optimizer import parameters_of, step_alone
from farandole.torch.tensors import check


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
    gradient get one of zeros. Parameters do not change. `model` is there for scripts that give it,
    and has no meaning. Raises CallError, a ValueError, for LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise CallError(
            "the state of LBFGS cannot be broadcast: its history belongs to one closure; let each "
            "rank begin with a new one"
        )
    if lifecycle.rank() == arguments.rank_number(root_rank):
        state = optimizer.state_dict()
        _send(state, root_rank, process_set)
    else:
        state = _receive(root_rank, process_set)
        optimizer.load_state_dict(state)
    if not state["state"]:
        _make_state(optimizer)


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


def _send(state: dict[str, Any], root_rank: int, process_set: Group) -> None:
    error: CallError | None = None
    try:
        text, tensors = structure.encode(state, lambda part: isinstance(part, torch.Tensor))
        for tensor in tensors:
            check(tensor)
    except CallError as problem:
        error = CallError(f"the optimizer state of rank {root_rank} cannot be sent: {problem}")
        text, tensors = "", []
    layouts = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
    note, _ = structure.encode(
        {"error": error and str(error), "text": text, "layouts": layouts}, lambda part: False
    )
    data = torch.frombuffer(bytearray(note.encode()), dtype=torch.uint8)
    broadcast_(torch.tensor(len(data)), root_rank, "state.length", process_set)
    broadcast_(data, root_rank, "state.structure", process_set)
    if error is not None:
        raise error
    _exchange([tensor.detach().contiguous() for tensor in tensors], root_rank, process_set)


def _receive(root_rank: int, process_set: Group) -> dict[str, Any]:
    length = broadcast_(torch.tensor(0), root_rank, "state.length", process_set)
    data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, "state.structure", process_set)
    note = structure.decode(bytes(data.numpy()).decode(), [])
    if note["error"]:
        raise CallError(note["error"])
    tensors = [torch.empty(shape, dtype=getattr(torch, name)) for name, shape in note["layouts"]]
    _exchange(tensors, root_rank, process_set)
    state: dict[str, Any] = structure.decode(note["text"], tensors)
    return state


def _exchange(tensors: list[torch.Tensor], root_rank: int, process_set: Group) -> None:
    handles = [
        broadcast_async_(tensor, root_rank, f"state.{index}", process_set)
        for index, tensor in enumerate(tensors)
    ]
    BatchHandle(handles).wait()
