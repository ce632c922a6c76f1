"""Convert torch's reduce operations to the engine's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from farandole.errors import CallError
from farandole.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

# A Reduction has one of two forms. If the engine has the op, the Reduction is this op, with the
# factor by which every input is multiplied. Otherwise, it is a function of two tensors, which each
# rank applies to the gathered inputs.
BitwiseFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Reduction = tuple[ReduceOp, float] | BitwiseFunction

_OP_TYPE = dist.ReduceOp.RedOpType
_REDUCTIONS: dict[Any, Reduction] = {
    _OP_TYPE.SUM: (Sum, 1.0),
    _OP_TYPE.AVG: (Average, 1.0),
    _OP_TYPE.PRODUCT: (Product, 1.0),
    _OP_TYPE.MIN: (Min, 1.0),
    _OP_TYPE.MAX: (Max, 1.0),
    _OP_TYPE.BAND: torch.bitwise_and,
    _OP_TYPE.BOR: torch.bitwise_or,
    _OP_TYPE.BXOR: torch.bitwise_xor,
}


def reduction_of(op: Any) -> Reduction:
    """Return the reduction. Raise CallError for PREMUL_SUM by a tensor."""
    op_type = op if isinstance(op, _OP_TYPE) else op.op
    reduction = _REDUCTIONS.get(op_type)
    if reduction is not None:
        return reduction
    if op_type == _OP_TYPE.PREMUL_SUM and isinstance(op.factor, float):
        return Sum, op.factor
    raise CallError(
        f"{op_type.name} by a tensor is not supported; use PREMUL_SUM by a number, or multiply "
        "before"
    )


def check_bitwise_dtype(function: BitwiseFunction, tensor: torch.Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        raise CallError(
            f"a {function.__name__} needs whole numbers or bool; got {tensor.dtype}: view() "
            "shows the same bits as whole numbers"
        )
