"""What a torch tensor must be to be handed over, and its memory as the engine sees it."""

from __future__ import annotations

import torch

from farandole import core
from farandole.errors import CallError

DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in core.dtypes.items()
}
_STRIDED = torch.strided


def check(tensor: torch.Tensor) -> None:
    """Raises CallError unless the engine can work on the tensor's elements."""
    check_memory(tensor)
    if tensor.dtype not in DTYPE_CODES:
        known = ", ".join(core.dtypes)
        raise CallError(f"{tensor.dtype} cannot be reduced or sent; these can: {known}")


def check_memory(tensor: torch.Tensor) -> None:
    """Raises CallError unless the engine can reach the tensor's memory."""
    if not isinstance(tensor, torch.Tensor):
        raise CallError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise CallError(
            f"the tensor is on {tensor.device}; only host memory works so far: use tensor.cpu()"
        )
    if tensor.layout is not _STRIDED:
        raise CallError(f"the tensor's layout is {tensor.layout}: use tensor.to_dense()")


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
    """The tensor itself, or a copy whose memory holds its values one after another."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().contiguous()


def view_of(
    source: torch.Tensor,
    target: torch.Tensor | None = None,
    shape: tuple[int, ...] | None = None,
) -> core.BufferView:
    """Borrows contiguous memory; without a target there is only input. `shape`: another one of as
    many elements."""
    output = 0 if target is None else target.data_ptr()
    code = DTYPE_CODES[source.dtype]
    return core.BufferView(code, shape or source.shape, source.data_ptr(), output)
