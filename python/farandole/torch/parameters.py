"""Torch's part in the check that parameters are the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farandole import parameter_check
from farandole.group import Group, global_process_set
from farandole.parameter_check import ADVICE
from farandole.torch import tensors as torch_tensors


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
    parameter_check.check(torch_tensors, params, process_set, name, advice=ADVICE)
