"""A device for PyTorch that is not the host, made in Python, so that tests need no GPU.

A tensor on this device keeps its values in a tensor in host memory, `near`, but PyTorch does not
know their address.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
CPU = torch.device("cpu")


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


def _run_on_near(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any other operation on the values in host memory. Views share these values."""
    args, kwargs = tree_map_only(FarTensor, lambda tensor: tensor.near, (args, kwargs))
    args, kwargs = tree_map_only(torch.device, lambda device: CPU, (args, kwargs))
    return tree_map_only(torch.Tensor, far, operation(*args, **kwargs))


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run_on_near, "PrivateUse1")
