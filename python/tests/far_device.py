"""A PyTorch device other than the CPU, written in Python, so that tests need no GPU.

A tensor on this device keeps its values in host memory, in its attribute `host_tensor`. PyTorch
does not know the address of these values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
CPU = torch.device("cpu")


class FarTensor(torch.Tensor):
    host_tensor: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def detach(self) -> FarTensor:
        return self


def make_far_tensor(host_tensor: torch.Tensor) -> Any:
    tensor = torch._C._acc.create_empty_tensor(host_tensor.shape, host_tensor.dtype)
    tensor.__class__ = FarTensor
    tensor.host_tensor = host_tensor
    return tensor


@torch.library.impl("aten::empty_strided", "privateuseone")
def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Any:
    return make_far_tensor(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl("aten::_copy_from", "privateuseone")
def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    values = source.host_tensor if isinstance(source, FarTensor) else source
    (target.host_tensor if isinstance(target, FarTensor) else target).copy_(values)
    return target


def _run_on_host(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation that has no function above on the values in host memory. A view of a tensor
    shares the values of this tensor."""
    args, kwargs = tree_map_only(FarTensor, lambda tensor: tensor.host_tensor, (args, kwargs))
    args, kwargs = tree_map_only(torch.device, lambda device: CPU, (args, kwargs))
    return tree_map_only(torch.Tensor, make_far_tensor, operation(*args, **kwargs))


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run_on_host, "PrivateUse1")
