"""Convert torch's reduce operations to those of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from farandole.errors import CallError
from farandole.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

# A Reduction has one of two forms. It is either the engine's op, with the factor by which every
# input is multiplied. Or, if the engine has no such op, it is a function of two tensors, which each
# rank applies to the gathered inputs.
Bitwise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Reduction = tuple[ReduceOp, float] | Bitwise

_KIND = dist.ReduceOp.RedOpType
_REDUCTIONS: dict[Any, Reduction] = {
    _KIND.SUM: (Sum, 1.0),
    _KIND.AVG: (Average, 1.0),
    _KIND.PRODUCT: (Product, 1.0),
    _KIND.MIN: (Min, 1.0),
    _KIND.MAX: (Max, 1.0),
    _KIND.BAND: torch.bitwise_and,
    _KIND.BOR: torch.bitwise_or,
    _KIND.BXOR: torch.bitwise_xor,
}


def reduction_of(op: Any) -> Reduction:
    """Return the reduction. Raise CallError for PREMUL_SUM by a tensor."""
    kind = op if isinstance(op, _KIND) else op.op
    known = _REDUCTIONS.get(kind)
    if known is not None:
        return known
    if kind == _KIND.PREMUL_SUM and isinstance(op.factor, float):
        return Sum, op.factor
    raise CallError(
        f"{kind.name} by a tensor is not supported; use PREMUL_SUM by a number, or multiply before"
    )


def check_bitwise(function: Bitwise, tensor: torch.Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        raise CallError(
            f"a {function.__name__} needs whole numbers or bool; got {tensor.dtype}: view() "
            "shows the same bits as whole numbers"
        )
