"""Checks of tensors that are not in host memory.

The checks need no GPU: they make a device for PyTorch in Python. A tensor on this device keeps its
values in a tensor in host memory.
"""

from __future__ import annotations

from typing import Any

import torch
from suite import Suite
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch_frontend import TorchFrontend

import farandole.torch as hvd

_setup_privateuseone_for_python_backend("far")
FAR = torch.device("far")


class FarTensor(torch.Tensor):
    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def detach(self) -> FarTensor:
        return self


def far(near: torch.Tensor) -> Any:
    tensor = torch._C._acc.create_empty_tensor(near.shape, near.dtype)
    tensor.__class__ = FarTensor
    tensor.near = near
    return tensor


@torch.library.impl("aten::empty_strided", "privateuseone")
def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Any:
    return far(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl("aten::_copy_from", "privateuseone")
def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    values = source.near if isinstance(source, FarTensor) else source
    (target.near if isinstance(target, FarTensor) else target).copy_(values)
    return target


class DeviceChecks(Suite):
    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def expect_far(self, tensor: Any, wanted: torch.Tensor) -> None:
        assert tensor.device.type == "far", tensor.device
        assert torch.equal(tensor.near, wanted), (tensor.near, wanted)

    def check_results_come_back(self) -> None:
        near = torch.arange(1.0, 2 * self.size + 1).view(self.size, 2)
        tensor, total = far(near), near * self.size
        self.expect_far(hvd.allreduce(tensor, op=hvd.Sum), total)
        self.expect_far(hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum)), total)
        self.expect_far(hvd.reducescatter(tensor, op=hvd.Sum), total[self.rank : self.rank + 1])
        self.expect_far(hvd.allgather(tensor), near.repeat(self.size, 1))
        received, rows = hvd.alltoall(tensor, far(torch.ones(self.size, dtype=torch.int32)).cpu())
        self.expect_far(received, near[self.rank].repeat(self.size, 1))
        assert rows.is_cpu
        self.expect_far(hvd.broadcast(far(near * self.rank), self.size - 1), near * (self.size - 1))
        for result in hvd.grouped_allreduce([tensor] * 2, op=hvd.Sum):
            self.expect_far(result, total)
        self.expect_far(tensor, near)

    def check_results_in_place(self) -> None:
        near = torch.arange(4.0)
        for form in (hvd.allreduce_, lambda t, op: hvd.synchronize(hvd.allreduce_async_(t, op=op))):
            tensor = far(near.clone())
            assert form(tensor, op=hvd.Sum) is tensor
            self.expect_far(tensor, near * self.size)
        tensor = far(near * self.rank)
        assert hvd.broadcast_(tensor, self.size - 1) is tensor
        self.expect_far(tensor, near * (self.size - 1))

    def check_ranks_on_different_devices(self) -> None:
        if self.size == 1:
            return
        near = torch.ones(3)
        text = self.expect_error(
            "`where`", hvd.allreduce, far(near) if self.rank else near, name="where"
        )
        assert "cpu" in text and "privateuseone" in text, text
        self.expect_far(hvd.allreduce(far(near), name="where"), near)
