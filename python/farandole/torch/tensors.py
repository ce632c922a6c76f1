"""The interface of torch tensors that the shared modules use: see farandole.arrays.Arrays.

The engine works on host memory. `contiguous_on_host` copies a tensor from another device to host
memory, and `on_device_of` copies the result back to the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from farandole import core
from farandole.errors import CallError

if torch.__version__ < (2, 4):
    raise ImportError(
        f"farandole.torch needs torch 2.4 or newer; this is torch {torch.__version__}: run "
        "`pip install --upgrade torch`"
    )

DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for name, code in core.dtypes.items()
}
_CPU = core.devices["cpu"]
_STRIDED = torch.strided
has_exact_gradients = False  # they follow Horovod's rules
exact_array_types: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)


def is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def check(tensor: torch.Tensor) -> None:
    """Raise CallError unless the engine can send and reduce the tensor's values."""
    check_memory(tensor)
    if tensor.dtype not in DTYPE_CODES:
        known_dtypes = ", ".join(core.dtypes)
        raise CallError(f"{tensor.dtype} cannot be reduced or sent; these can: {known_dtypes}")


def dtype_and_shape(tensor: torch.Tensor) -> str:
    """Return the dtype and the shape as text for people: "float32 [2, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def check_memory(tensor: torch.Tensor) -> None:
    """Raise CallError unless the engine can read the tensor's memory."""
    if not isinstance(tensor, torch.Tensor):
        raise CallError(f"a torch.Tensor is needed, not a {type(tensor).__name__}")
    if tensor.layout is not _STRIDED:
        raise CallError(
            f"the tensor's layout is {tensor.layout}: use sparse_allreduce_async(), or "
            "tensor.to_dense() on all ranks"
        )
    if not tensor.is_cpu:
        _device_code(tensor.device)


def check_writable(tensor: torch.Tensor) -> None:
    """Raise CallError unless a result can be written into the tensor. For that, check() must accept
    the tensor, and its elements must not share memory."""
    check(tensor)
    if tensor.is_contiguous() or tensor.numel() == 0:
        return
    if any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise CallError(
            "an expanded tensor has several elements in one place and cannot take a result: "
            "use tensor.clone()"
        )


def check_no_overlap(tensors: Sequence[torch.Tensor]) -> None:
    """Raise CallError if two tensors of a batch overlap in memory, because a batch writes its
    results in any order. Do not check views with gaps, because the elements of one view may lie
    between those of another."""
    begins_and_indices = sorted(
        (tensor.data_ptr(), index)
        for index, tensor in enumerate(tensors)
        if tensor.is_contiguous() and tensor.numel() > 0
    )
    for (begin, index), (next_begin, next_index) in pairwise(begins_and_indices):
        if begin + tensors[index].nbytes > next_begin:
            first, second = sorted((index, next_index))
            raise CallError(
                f"tensors {first} and {second} of the batch overlap in memory, so one result would "
                "overwrite the other: give each tensor once, or use tensor.clone()"
            )


def is_contiguous_on_host(tensor: torch.Tensor) -> bool:
    """Return whether the values of the tensor lie one after another in host memory. For a tensor
    with the negative or the conjugate bit, return False, because its memory holds other values."""
    if tensor.is_neg() or tensor.is_conj():
        return False
    return tensor.is_contiguous() and tensor.is_cpu


def contiguous_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is contiguous on the host, otherwise a contiguous copy there."""
    if is_contiguous_on_host(tensor):
        return tensor
    return _resolved(tensor).cpu().contiguous()


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the detached tensor, or a copy if the tensor's memory does not hold its values."""
    return tensor.detach().resolve_conj().resolve_neg()


def on_device_of(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return `result`, which is in host memory. If `tensor` is on another device, return a copy of
    `result` on that device."""
    return result if tensor.is_cpu else result.to(tensor.device)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)


def item_bytes(tensor: torch.Tensor) -> int:
    return tensor.element_size()


def why_unreadable(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return "on the device meta"
    return "" if tensor.layout is _STRIDED else f"of the layout {tensor.layout}"


def bytes_of(tensor: torch.Tensor) -> Any:
    memory = _resolved(tensor).cpu().contiguous()
    size_bytes = memory.numel() * memory.element_size()
    if size_bytes == 0:
        return b""
    buffer = (ctypes.c_char * size_bytes).from_address(memory.data_ptr())
    buffer.memory = memory  # keeps the memory alive as long as `buffer` exists
    return buffer


def largest_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    dtype = torch.complex128 if first.is_complex() else torch.float64
    return float((first.to(dtype) - second.to(dtype)).abs().max())


def from_engine(memory: core.SharedArray) -> torch.Tensor:
    return torch.from_dlpack(memory)


def empty(shape: Sequence[int], dtype: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")  # ignore torch's default device


empty_like = torch.empty_like


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor)


def padded_with_zeros(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat((tensor, tensor.new_zeros((rows - len(tensor), *tensor.shape[1:]))))


def concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(tuple(tensors))


def view_of(
    tensor: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor | None = None,
    shape: tuple[int, ...] | None = None,
) -> core.BufferView:
    """Return a view that borrows the memory of `source` and of `target`. `source` is
    contiguous_on_host(tensor). The result is written into `target` or, if it is None, into memory
    of the engine. `shape` is the shape to use instead of the shape of `source`, with the same
    number of elements."""
    dtype = DTYPE_CODES[source.dtype]
    input = output = source.data_ptr()
    if target is not source:
        output = 0 if target is None else target.data_ptr()
    device = _CPU if tensor.is_cpu else _device_code(tensor.device)
    return core.BufferView(dtype, shape or source.shape, input, output, device)


_exchange_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # since torch 2.10
_tensor_reader = None if _exchange_api is None else core.TensorReader(_exchange_api)


def direct_view(tensor: Any) -> core.BufferView | None:
    """Return view_of(tensor, tensor, tensor) if this is a contiguous tensor in host memory that the
    engine can read and write. Otherwise, and with torch before 2.10, return None. direct_view() is
    several times as fast as check_writable() and view_of()."""
    if _tensor_reader is None or type(tensor) not in exact_array_types or tensor.is_neg():
        return None
    return _tensor_reader.view_of(tensor)


def _device_code(device: torch.device) -> int:
    """Return the engine's number for the kind of device. PyTorch calls ROCm "cuda", and an
    extension may rename its device."""
    name = device.type
    if name == "cuda" and torch.version.hip:
        name = "rocm"
    if name == torch._C._get_privateuse1_backend_name():
        name = "privateuseone"
    if name not in core.devices:
        raise CallError(
            f"the tensor is on {device}, and its values cannot be copied to host memory: use "
            "another device"
        )
    return core.devices[name]


def permuted_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides if the elements fill their memory without gaps, but in another order than
    in a contiguous tensor, as with channels_last. Otherwise, return None. Dimensions of length
    1 get the stride 1, because their stride has no effect."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    expected_stride = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected_stride:
            return None
        expected_stride *= size
    return tuple(
        1 if size == 1 else stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
