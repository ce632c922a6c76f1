"""The reduction operations, with their numbers in the engine's table."""

from __future__ import annotations

import enum

from farandole import core
from farandole.errors import CallError


class ReduceOp(enum.IntEnum):
    Average = core.reduce_ops["average"]
    Sum = core.reduce_ops["sum"]
    Adasum = core.reduce_ops["adasum"]
    """For allreduce of floats: a sum that counts what the tensors have in common only once. Two
    tensors give (1 - a·b / 2a·a) a + (1 - a·b / 2b·b) b: their sum if they are orthogonal, their
    average if they are equal. More than two tensors are combined in a tree: neighbours in rank
    order are paired, level by level, and an unpaired last tensor passes to the next level
    unchanged. Ranks that have called join() count as zeros. Each tensor of a batch is combined by
    itself."""
    Min = core.reduce_ops["min"]
    Max = core.reduce_ops["max"]
    Product = core.reduce_ops["product"]
    AverageOfPresent = core.reduce_ops["average_of_present"]
    """The average over the ranks that have not joined. Average divides by the number of all ranks,
    as Horovod does."""


Sum = ReduceOp.Sum
Average = ReduceOp.Average
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
AverageOfPresent = ReduceOp.AverageOfPresent
Adasum = ReduceOp.Adasum


_op_numbers = {op.value for op in ReduceOp}


def checked_op(op: ReduceOp | int) -> ReduceOp:
    """Return the op, which may be given by its number, as in Horovod."""
    if isinstance(op, ReduceOp):
        return op
    if isinstance(op, int) and not isinstance(op, bool) and op in _op_numbers:
        return ReduceOp(op)
    known = ", ".join(f"{known.name} ({known.value})" for known in ReduceOp)
    raise CallError(f"op must be one of {known}; got {op!r}")


def reduce_op_of(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """Return the op for the arguments `op` and the older `average`. The caller must call
    checked_op() on the result."""
    if op is None:
        return Average if average is None or average else Sum  # 0 counts as False, as in Horovod
    if average is not None:
        raise CallError(
            f"give either op, or average (the older argument), not both; got {op!r} and "
            f"average={average!r}"
        )
    return op
