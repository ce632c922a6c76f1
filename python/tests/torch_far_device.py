"""Checks of tensors on the device of far_device.py. No other suite may run in the same process,
because PyTorch then uses this device as the machine's accelerator, even if there is a GPU."""

from __future__ import annotations

from typing import Any

import far_device
import torch
from torch_devices import DeviceChecks


class FarDeviceChecks(DeviceChecks):
    device, kind = "far", "privateuseone"

    def to_device(self, tensor: torch.Tensor) -> Any:
        return far_device.make_far_tensor(tensor)

    def to_host(self, tensor: Any) -> torch.Tensor:
        return tensor.host_tensor
