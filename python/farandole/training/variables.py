"""Check, compare and name the variables that TensorFlow and Keras programs pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from farandole.comparison import gather_error_texts, table
from farandole.errors import CallError
from farandole.group import global_process_set
from farandole.objects import broadcast_object


def checked_variables(variables: Any) -> list[Any]:
    """Return a variable, or an iterable of variables, as a list."""
    is_single = hasattr(variables, "assign") or not isinstance(variables, Iterable)
    variable_list = [variables] if is_single else list(variables)
    for variable in variable_list:
        if not hasattr(variable, "assign"):
            raise CallError(
                "variables must be a list of variables, such as model.variables; it contains "
                f"{variable!r}"
            )
    return variable_list


def check_same_variables(variables: Sequence[Any], advice: str, problem: str = "") -> None:
    """Raise CallError on all ranks if a rank has a problem, or if a rank's variables differ from
    those of rank 0 in number, dtype or shape. Without this check, ranks with different numbers of
    variables would wait forever in a broadcast, because the names of the calls contain this number.

    `problem` is this rank's problem, or "". The text of the error ends with `advice`.
    """
    dtypes_and_shapes = [_dtype_and_shape(variable) for variable in variables]
    pairs = itertools.zip_longest(
        numbered_names(variables),
        dtypes_and_shapes,
        broadcast_object(dtypes_and_shapes, 0, "elastic.kinds"),
        fillvalue="",
    )
    differences = (
        f"variable {name or number} is {own or 'missing'} (on rank 0, it is {root or 'missing'})"
        for number, (name, own, root) in enumerate(pairs)
        if own != root
    )
    own_problem = problem or next(differences, "")
    if problems := gather_error_texts(own_problem, "elastic.problems", global_process_set):
        raise CallError(
            f"the ranks cannot begin with the same variables:\n{table(problems)}\n{advice}"
        )


def _dtype_and_shape(variable: Any) -> str:
    # A dtype of TensorFlow 1 may be a reference to a base dtype.
    dtype = getattr(variable.dtype, "base_dtype", variable.dtype)
    return f"{getattr(dtype, 'name', dtype)} {variable.shape}"


def numbered_names(values: Sequence[Any]) -> list[str]:
    """Return a different name for each variable or tensor: its number, and its own name, if any."""
    return [f"{i} {_own_name(value)}".rstrip() for i, value in enumerate(values)]


def _own_name(value: Any) -> str:
    return str(getattr(value, "path", None) or getattr(value, "name", ""))
