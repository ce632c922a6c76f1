"""Check the arguments of calls and convert them for the engine, for every framework."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeVar

from farandole import lifecycle
from farandole.errors import CallError
from farandole.group import Group, checked_group

Item = TypeVar("Item")

# The largest rank and the largest number of rows that the engine can represent.
_RANK_MAX, _ROWS_MAX = 2**31 - 1, 2**63 - 1


def call_name(name: str | None) -> str:
    """Check a call's name. For None, return an empty name, so that the engine chooses one."""
    if name is None:
        return ""
    if not isinstance(name, str):
        raise CallError(f"name must be a string, the same on all ranks; got {name!r}")
    return name


def batch_names(name: str | None, count: int) -> list[str]:
    """Return the names of the calls of a batch."""
    base = call_name(name)
    return [f"{base}_{i}of{count}" if base else "" for i in range(1, count + 1)]


def gradient_name(name: str | None) -> str | None:
    """Return the name of the call by which backward() computes the gradient of the call `name`."""
    return f"{name}.gradient" if name else None


def group_number(process_set: Group) -> int:
    number = checked_group(process_set).process_set_id
    if number is not None:
        return number
    lifecycle.engine()  # raises a CallError if this process is not in a job
    return process_set.number()


def checked_batch(tensors: Sequence[Item]) -> Sequence[Item]:
    if not isinstance(tensors, (list, tuple)):
        raise CallError(f"a grouped call needs a list of tensors; got a {type(tensors).__name__}")
    if not tensors:
        raise CallError("a grouped call needs at least one tensor; the list is empty")
    return tensors


def positive_whole_number(value: Any) -> int | None:
    """Return the value as an int. Return None if the value is not a whole number above 0."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number > 0 else None


def checked_scale_factor(value: float) -> float:
    if isinstance(value, float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise CallError(
            f"prescale_factor and postscale_factor must be numbers; got {value!r}"
        ) from None


def checked_rank(root_rank: int) -> int:
    try:
        rank = operator.index(root_rank)
    except TypeError:
        rank = _RANK_MAX + 1
    if abs(rank) > _RANK_MAX:
        raise CallError(f"root_rank must be a rank of the world; got {root_rank!r}")
    return rank


def checked_splits(splits: Any) -> tuple[int, ...]:
    """Return splits as a tuple of whole numbers. For None, return an empty tuple.

    `splits` may be a list, or a tensor or array on any device.
    """
    if splits is None:
        return ()
    # tolist() copies all numbers from a device at once.
    row_counts = splits.tolist() if hasattr(splits, "tolist") else splits
    try:
        sizes = tuple(operator.index(rows) for rows in row_counts)
    except TypeError:
        sizes = ()
    if not sizes or any(abs(rows) > _ROWS_MAX for rows in sizes):
        raise CallError(
            "splits must be a list or tensor of whole numbers, the number of rows for each "
            f"member; got {splits!r}"
        )
    return sizes


def checked_batch_splits(splits: Sequence[Item], count: int) -> Sequence[Item]:
    if not isinstance(splits, (list, tuple)) or len(splits) != count:
        raise CallError(
            f"splits of a grouped call must be a list with the splits of each of {count} tensors; "
            f"got {splits!r}"
        )
    return splits
