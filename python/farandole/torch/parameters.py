"""Torch's part in the check that parameters are the same on all ranks: their names and bytes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from farandole import parameter_check
from farandole.errors import CallError
from farandole.group import Group, OptimizerName, global_process_set
from farandole.parameter_check import Parameter
from farandole.reduce_op import Max, Min
from farandole.torch.operations import allreduce
from farandole.torch.tensors import DTYPE_CODES, kind_of

_PART_BYTES = 16 << 20

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
    """Of the parameters of one optimizer: all after its first step in a job, and a part of them
    every so many steps after that, another part each time."""

    def __init__(self, every: int, name: OptimizerName, process_set: Group) -> None:
        self._every, self._name, self._group = every, name, process_set
        self._registration: object = None
        self._steps = 0

    def after_step(self, params: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        if self._group.registration is not self._registration:
            # A job formed anew may have members whose optimizer is new: all count from there.
            self._registration, self._steps = self._group.registration, 0
        self._steps += 1
        turn, rest = divmod(self._steps - 1, self._every)
        if rest != 0:
            return
        chosen, advice = params(), _ADVICE
        if turn > 0:
            chosen, count = _part_of(chosen, turn)
            last = max(1, self._steps - count * self._every)
            advice = (
                f"They were the same after step {last}: look for what changes them on some ranks "
                "only, such as a branch on the rank, or a checkpoint that one rank loads"
            )
        name = f"{self._name}.parameters"
        when = f" after step {self._steps} of the optimizer"
        reader = _reader(chosen, name, self._group)
        parameter_check.check(reader, self._group, name, when, advice)


def _part_of(params: Mapping[str, torch.Tensor], turn: int) -> tuple[dict[str, torch.Tensor], int]:
    """The elements that begin in one part of all bytes, and how many parts there are."""
    count = -(-sum(p.numel() * p.element_size() for p in params.values()) // _PART_BYTES)
    first = turn % max(1, count) * _PART_BYTES
    chosen, offset = {}, 0
    for name, parameter in sorted(params.items()):
        size = parameter.element_size()
        begin, end = (-((offset - at) // size) for at in (first, first + _PART_BYTES))
        begin, end = max(0, begin), min(end, parameter.numel())
        if end - begin == parameter.numel():
            chosen[name] = parameter
        elif begin < end:
            chosen[name] = parameter.detach().reshape(-1)[begin:end]
        offset += parameter.numel() * size
    return chosen, count


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
