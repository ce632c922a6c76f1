"""Checks that the docstrings of the public functions are complete, and that their examples run."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

import farandole
import farandole.torch as hvd

# A docstring need not explain `self`, and may call *args and **kwargs just "other arguments".
SELF_EXPLANATORY = {"self", "args", "kwargs"}
EXAMPLES_MIN = 10


def is_public_method(name: str, member: object) -> bool:
    return inspect.isfunction(member) and "._" not in name


def public_functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions of the package and the methods of its classes, with their
    names."""
    for module in (farandole, hvd):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield name, value
            if inspect.isclass(value) and value.__module__.startswith("farandole"):
                members = {f"{name}.{key}": member for key, member in vars(value).items()}
                yield from ((k, m) for k, m in members.items() if is_public_method(k, m))


class DocstringChecks:
    def __init__(self) -> None:
        hvd.init()

    def check_each_argument_is_explained(self) -> None:
        argument_count = 0
        for name, function in public_functions():
            text = inspect.getdoc(function) or ""
            assert text, f"{name} has no docstring"
            if "." in name:  # arguments of methods often need no explanation
                continue
            for argument in inspect.signature(function).parameters:
                if argument not in SELF_EXPLANATORY:
                    assert re.search(rf"\b{argument}\b", text), (
                        f"{name} does not explain {argument}"
                    )
                    argument_count += 1
        assert argument_count > 100

    def check_the_examples_run(self) -> None:
        count = 0
        for name, function in dict(public_functions()).items():
            text = inspect.getdoc(function) or ""
            for block in re.findall(r"^Example::\n\n((?:    .*\n?|\n)+)", text, re.M):
                print(f"the example of {name}", flush=True)
                exec(textwrap.dedent(block), {"hvd": hvd, "torch": torch})
                count += 1
        assert count >= EXAMPLES_MIN
