"""Check, compare and name the variables that TensorFlow and Keras programs pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from farandole.comparison import exchange_failures, table
from farandole.errors import CallError
from farandole.group import global_process_set
from farandole.objects import broadcast_object


def checked_variables(variables: Any) -> list[Any]:
    """Return a variable, or an iterable of variables, as a list."""
    is_one = hasattr(variables, "assign") or not isinstance(variables, Iterable)
    listed = [variables] if is_one else list(variables)
    for variable in listed:
        if not hasattr(variable, "assign"):
            raise CallError(
                "variables must be a list of variables, such as model.variables; it contains "
                f"{variable!r}"
            )
    return listed


def check_same_kinds(variables: Sequence[Any], advice: str, problem: str = "") -> None:
    """Raise CallError on all ranks if a rank has a problem, or other variables than rank 0: another
    number of them, or other dtypes or shapes. Without this check, the ranks would wait for ever in
    a broadcast, because the names of its calls contain the number of variables.

    `problem` is this rank's problem, or "". The text of the error ends with `advice`.
    """
    kinds = [_kind(variable) for variable in variables]
    pairs = itertools.zip_longest(
        numbered_names(variables),
        kinds,
        broadcast_object(kinds, 0, "elastic.kinds"),
        fillvalue="",
    )
    differences = (
        f"variable {name or number} is {own or 'missing'} (on rank 0, it is {root or 'missing'})"
        for number, (name, own, root) in enumerate(pairs)
        if own != root
    )
    mine = problem or next(differences, "")
    if problems := exchange_failures(mine, "elastic.problems", global_process_set):
        raise CallError(
            f"the ranks cannot begin with the same variables:\n{table(problems)}\n{advice}"
        )


def _kind(variable: Any) -> str:
    dtype = getattr(variable.dtype, "base_dtype", variable.dtype)  # TensorFlow 1 has "references"
    return f"{getattr(dtype, 'name', dtype)} {variable.shape}"


def numbered_names(values: Sequence[Any]) -> list[str]:
    """Return a different name for each variable or tensor: its number, and its own name, if any."""
    return [f"{i} {_own_name(value)}".rstrip() for i, value in enumerate(values)]


def _own_name(value: Any) -> str:
    return str(getattr(value, "path", None) or getattr(value, "name", ""))
