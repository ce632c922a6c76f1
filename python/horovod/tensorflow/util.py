"""Variables as objects that can be members of sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def vars_to_refs(vars: Iterable[Any]) -> list[Any]:
    """Return what each variable's ref() returns."""
    return [variable.ref() for variable in vars]


def refs_to_vars(refs: Iterable[Any]) -> list[Any]:
    """Return the variables to which references from vars_to_refs() refer."""
    return [reference.deref() for reference in refs]
