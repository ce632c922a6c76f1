"""Check and name the variables that TensorFlow and Keras programs pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from farandole.errors import CallError


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


def numbered_names(values: Sequence[Any]) -> list[str]:
    """Return a different name for each variable or tensor: its number, and its own name, if any."""
    return [f"{i} {_own_name(value)}".rstrip() for i, value in enumerate(values)]


def _own_name(value: Any) -> str:
    return str(getattr(value, "path", None) or getattr(value, "name", ""))
