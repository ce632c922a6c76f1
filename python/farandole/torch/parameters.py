"""Torch's part in the check that parameters are the same on all ranks: their names and bytes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from farandole import parameter_check
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.parameter_check import Parameter
from farandole.reduce_op import Max, Min
from farandole.torch.operations import allreduce
from farandole.torch.tensors import DTYPE_CODES, kind_of

_ADVICE = (
    "Give all ranks the same values: broadcast_parameters(model.state_dict(), root_rank=0) after "
    "the model is built and after a checkpoint is loaded"
)


def check_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    name: str | None = None,
    *,
    process_set: Group = global_process_set,
) -> None:
    """Raises CallError, with the same text on all ranks, unless the parameters are the same on all
    ranks of the process_set; the text names the first that differs, and the ranks. Waits for them.

    params: `model.named_parameters()`, `model.state_dict()`, or tensors without names, on any
    device and of any dtype. What differs by design must be left out: with named_parameters()
    instead of state_dict() the running statistics of batch normalisation are. Parameters belong
    together by their names, in any order. They are compared bit by bit: 0.0 is not -0.0, and a NaN
    is the same as one of the same bits only. Each rank reads all bytes of its parameters once; the
    ranks exchange 32 bytes when all is well. Ranks that have joined do not count.
    """
    parameter_check.check(_reader(params, name, process_set), process_set, name, advice=_ADVICE)


class PeriodicCheck:
    """Of the parameters of one optimizer, after its first step and every so many steps after it."""

    def __init__(self, every: int, name: str, process_set: Group) -> None:
        self._every, self._name, self._group = every, name, process_set
        self._steps = 0

    def after_step(self, params: Callable[[], Mapping[str, Any]]) -> None:
        self._steps += 1
        if (self._steps - 1) % self._every != 0:
            return
        when, advice = f" after step {self._steps} of the optimizer", _ADVICE
        if self._steps > 1:
            last = self._steps - self._every
            advice = (
                f"They were the same after step {last}: look for what changes them on some ranks "
                "only, such as a branch on the rank, or a checkpoint that one rank loads"
            )
        reader = _reader(params(), self._name, self._group)
        parameter_check.check(reader, self._group, self._name, when, advice)


def _reader(params: Any, name: str | None, process_set: Group) -> parameter_check.Reader:
    tensors: dict[str, torch.Tensor] = {}

    def read() -> dict[str, Parameter]:
        tensors.update(_named(params))
        return {key: _read(key, tensor) for key, tensor in tensors.items()}

    def spread(key: str) -> str:
        return _spread(tensors[key], name and f"{name}.spread", process_set)

    return parameter_check.Reader(read, spread)


def _named(params: Any) -> dict[str, torch.Tensor]:
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise CallError(
            "params must be model.named_parameters(), model.state_dict() or a list of tensors; it "
            f"is of the type {type(params).__name__}"
        )
    values = params.items() if isinstance(params, Mapping) else params
    named: dict[str, torch.Tensor] = {}
    for index, value in enumerate(values):
        key, tensor = value if isinstance(value, tuple) and len(value) == 2 else (index, value)
        if str(key) in named:
            raise CallError(f"params has the name `{key}` twice; give each tensor its own")
        if not isinstance(tensor, torch.Tensor):
            raise CallError(
                f"params has `{key}` of the type {type(tensor).__name__}, but only tensors can be "
                "compared: leave it out"
            )
        named[str(key)] = tensor
    return named


def _read(key: str, tensor: torch.Tensor) -> Parameter:
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = "on the device meta" if tensor.is_meta else f"of the layout {tensor.layout}"
        raise CallError(f"`{key}` is {kind}, and has no bytes to compare: leave it out")
    memory = _on_host(tensor)
    size = memory.numel() * memory.element_size()
    data = (ctypes.c_char * size).from_address(memory.data_ptr()) if size else b""
    return Parameter(kind_of(tensor), parameter_check.digest_of(data))


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _spread(tensor: torch.Tensor, name: str | None, process_set: Group) -> str:
    """Of a tensor that has the same dtype and shape on all ranks."""
    if tensor.dtype not in DTYPE_CODES or tensor.dtype is torch.bool:
        return ""
    values = _on_host(tensor)
    largest = allreduce(values, name=name, op=Max, process_set=process_set).double()
    smallest = allreduce(values, name=name, op=Min, process_set=process_set).double()
    difference = float((largest - smallest).abs().max())
    if difference == 0:
        return "the values are the same, the bits are not: one rank has 0.0, another one -0.0"
    if not math.isfinite(difference):
        return "some of the values are NaN or infinite"
    return f"the values of an element are up to {difference:.3g} apart"
