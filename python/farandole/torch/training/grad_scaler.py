"""Let a torch.amp.GradScaler step a DistributedOptimizer.

After an overflow, GradScaler.step() does not call the optimizer's step(). Each rank decides by its
own gradients, so all gradients must be combined before a rank decides. Otherwise, a rank with an
overflow of its own would skip the step while the other ranks wait for it. Before it looks for an
overflow, GradScaler.step() asks the optimizer for its attribute `_step_supports_amp_scaling`, so
the property of this name combines the gradients. If other code reads the property, it combines
nothing.
"""

from __future__ import annotations

import struct
from types import FrameType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from farandole.comparison import allreduce_max
from farandole.errors import CallError
from farandole.group import Group, OptimizerName

_FLOAT, _BITS = struct.Struct("d"), struct.Struct("q")
_STEP = GradScaler.step.__code__


def scaler_in_step(frame: FrameType) -> GradScaler | None:
    """Return the scaler if the frame is that of its step(), otherwise None."""
    return frame.f_locals["self"] if frame.f_code is _STEP else None


def has_unscaled(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the program has called scaler.unscale_() in this step."""
    return scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.UNSCALED


def share_overflow(
    scaler: GradScaler, optimizer: torch.optim.Optimizer, name: OptimizerName, group: Group
) -> None:
    """If a rank has called unscale_() and found an overflow, record an overflow on all ranks. The
    others may not have found it if the gradients were combined after unscale_(). All ranks call
    this function, because some ranks may call unscale_() and others not, for example to log the
    norm. If the scales of the ranks differ, raise an error on all of them, because the gradients
    were combined with different scales."""
    state: dict[str, Any] = scaler._per_optimizer_states[id(optimizer)]
    unscaled = has_unscaled(scaler, optimizer)
    overflow = unscaled and any(
        bool(found_inf.item()) for found_inf in state["found_inf_per_device"].values()
    )
    scale = scaler._scale
    assert scale is not None
    # The bits of positive floats, as whole numbers, have the order of the floats. The largest
    # complement belongs to the smallest number.
    bits = _BITS.unpack(_FLOAT.pack(scale.item()))[0]
    overflow_anywhere, largest, complement = allreduce_max(
        [overflow, bits, ~bits], f"{name}.overflow", group
    )
    if largest != ~complement:
        low, high = (_FLOAT.unpack(_BITS.pack(number))[0] for number in (~complement, largest))
        raise CallError(
            f"the GradScalers of the ranks have different scales, from {low:g} to {high:g}, so "
            "the gradients cannot be combined: all ranks must load the same state of the scaler "
            "and call scaler.update() in the same way"
        )
    if overflow_anywhere and not unscaled:
        scaler.unscale_(optimizer)
    elif not unscaled:
        return
    found: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
    if not found:  # this rank had no gradient; torch rejects a step without an entry
        found[scale.device] = torch.zeros((), device=scale.device)
    if overflow_anywhere > overflow:
        for found_inf in found.values():
            found_inf.fill_(1.0)
