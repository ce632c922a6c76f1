"""Convert torch's reduce operations to those of the engine."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from farandole.errors import CallError
from farandole.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

# The op, and the factor by which every input is multiplied.
Reduction = tuple[ReduceOp, float]

_KIND = dist.ReduceOp.RedOpType
_REDUCTIONS: dict[Any, Reduction] = {
    _KIND.SUM: (Sum, 1.0),
    _KIND.AVG: (Average, 1.0),
    _KIND.PRODUCT: (Product, 1.0),
    _KIND.MIN: (Min, 1.0),
    _KIND.MAX: (Max, 1.0),
}


def reduction_of(op: Any) -> Reduction:
    """Return the engine's op. Raise CallError for bitwise ops and for PREMUL_SUM by a tensor."""
    kind = op if isinstance(op, _KIND) else op.op
    known = _REDUCTIONS.get(kind)
    if known is not None:
        return known
    if kind == _KIND.PREMUL_SUM and isinstance(op.factor, float):
        return Sum, op.factor
    raise CallError(
        f"{kind.name} is not supported; use SUM, AVG, PRODUCT, MIN, MAX or PREMUL_SUM by a number"
    )
