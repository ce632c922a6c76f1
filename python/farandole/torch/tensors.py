"""What a torch tensor must be to be handed over, and its memory as the engine sees it.

The engine works on host memory. A tensor on another device is copied there, and its result back:
`dense` and `returned` are the only places that know.
"""

from __future__ import annotations

import torch

from farandole import core
from farandole.errors import CallError

DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in core.dtypes.items()
}
# By torch's name of the device; it calls ROCm "cuda", too.
DEVICE_CODES: dict[str, int] = {
    **{name: code for name, code in core.devices.items() if name != "rocm"},
    **({"cuda": core.devices["rocm"]} if torch.version.hip else {}),
}
_CPU = DEVICE_CODES["cpu"]
_STRIDED = torch.strided


def check(tensor: torch.Tensor) -> None:
    """Raises CallError unless the engine can work on the tensor's values."""
    if not isinstance(tensor, torch.Tensor):
        raise CallError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if tensor.layout is not _STRIDED:
        raise CallError(
            f"the tensor's layout is {tensor.layout}: use sparse_allreduce_async(), or "
            "tensor.to_dense() on all ranks"
        )
    if not tensor.is_cpu and tensor.device.type not in DEVICE_CODES:
        known = ", ".join(DEVICE_CODES)
        raise CallError(f"the tensor is on {tensor.device}, but must be on one of {known}")
    if tensor.dtype not in DTYPE_CODES:
        known = ", ".join(core.dtypes)
        raise CallError(f"{tensor.dtype} cannot be reduced or sent; these can: {known}")


def check_writable(tensor: torch.Tensor) -> None:
    """For results in place: check(), and no element may stand for several."""
    check(tensor)
    if tensor.is_contiguous() or tensor.numel() == 0:
        return
    if any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise CallError(
            "an expanded tensor has several elements in one place and cannot take a result: "
            "use tensor.clone()"
        )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy in host memory that holds its values one after another."""
    if tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().cpu().contiguous()


def returned(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The result, in host memory, on the device of the tensor that was given."""
    return result if tensor.is_cpu else result.to(tensor.device)


def view_of(
    tensor: torch.Tensor, source: torch.Tensor, target: torch.Tensor | None = None
) -> core.BufferView:
    """Borrows the memory of source, which is dense(tensor); without a target there is only
    input."""
    output = 0 if target is None else target.data_ptr()
    dtype, device = DTYPE_CODES[source.dtype], _CPU
    if not tensor.is_cpu:
        device = DEVICE_CODES[tensor.device.type]
    return core.BufferView(dtype, source.shape, source.data_ptr(), output, device)
