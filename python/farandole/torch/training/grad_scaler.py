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
import weakref
from types import FrameType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from farandole.comparison import allreduce_max
from farandole.group import Group, OptimizerName

_FLOAT64_FORMAT, _INT64_FORMAT = struct.Struct("d"), struct.Struct("q")
_STEP_CODE = GradScaler.step.__code__

# Each scaler whose scale differed between the ranks in a step, with the object in which the scaler
# keeps the states of the optimizers. update() makes a new object, so an entry counts for one step
# only.
_differing_scalers: weakref.WeakKeyDictionary[GradScaler, object] = weakref.WeakKeyDictionary()


def scaler_in_step(frame: FrameType) -> GradScaler | None:
    """Return the scaler if the frame is that of its step(), otherwise None."""
    return frame.f_locals["self"] if frame.f_code is _STEP_CODE else None


def has_unscaled(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the program has called scaler.unscale_() in this step."""
    return scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.UNSCALED


def share_overflow(
    scaler: GradScaler, optimizer: torch.optim.Optimizer, name: OptimizerName, group: Group
) -> None:
    """If a rank has called unscale_() and found an overflow, record an overflow on all ranks. The
    other ranks may not have found it if the gradients were combined after unscale_(). All ranks
    call this function, because some ranks may call unscale_() and others not, for example to log
    the norm.

    If the scales of the ranks differ, as after join() or with a new worker, gradients with
    different scales were combined. Then record an overflow on all ranks, so that they skip this
    step, and give all ranks the smallest scale."""
    state: dict[str, Any] = scaler._per_optimizer_states[id(optimizer)]
    was_unscaled = has_unscaled(scaler, optimizer)
    has_overflow = was_unscaled and any(
        bool(found_inf.item()) for found_inf in state["found_inf_per_device"].values()
    )
    scale = scaler._scale
    assert scale is not None
    bits = _INT64_FORMAT.unpack(_FLOAT64_FORMAT.pack(scale.item()))[0]
    overflow_anywhere, largest_bits, largest_complement = allreduce_max(
        [has_overflow, bits, ~bits], f"{name}.overflow", group
    )
    # As whole numbers, the bits of positive floats have the same order as the floats, so the
    # largest complement belongs to the smallest scale.
    if largest_bits != ~largest_complement:
        _differing_scalers[scaler] = scaler._per_optimizer_states
        scale.fill_(_FLOAT64_FORMAT.unpack(_INT64_FORMAT.pack(~largest_complement))[0])
        assert scaler._growth_tracker is not None
        scaler._growth_tracker.zero_()
    # The gradients of the other optimizers of this step were scaled by the same different scales,
    # so these optimizers must skip the step, too.
    if _differing_scalers.get(scaler) is scaler._per_optimizer_states:
        overflow_anywhere = 1
    if overflow_anywhere and not was_unscaled:
        scaler.unscale_(optimizer)
    elif not was_unscaled:
        return
    found_inf_by_device: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
    if not found_inf_by_device:  # without an entry, torch would reject the step
        found_inf_by_device[scale.device] = torch.zeros((), device=scale.device)
    if overflow_anywhere > has_overflow:
        for found_inf in found_inf_by_device.values():
            found_inf.fill_(1.0)
