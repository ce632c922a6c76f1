"""The alias has the public names and arguments of Horovod, or the guide lists the differences.

horovod_surface.json holds the public interface of Horovod 0.28.1: for each module its names, with
the arguments of functions and methods. Its facts come from Horovod, not from our sources. Some of
Horovod's modules are for frameworks and clusters that do not work here yet: the file lists these
modules, but not their names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from migration_guide import PAGE, rows

import horovod.torch

SURFACE = json.loads(Path(__file__).with_name("horovod_surface.json").read_text())
MODULES: dict[str, dict[str, Any]] = SURFACE["modules"]


def public_names(module: str) -> Iterator[tuple[str, str | None]]:
    """Yield names such as `init` and `State.commit`, with the arguments of functions and methods.

    Methods are included only if the alias has their class.
    """
    for name, fact in MODULES[module].items():
        if name.startswith("_"):
            continue
        yield name, fact if isinstance(fact, str) and fact.startswith("(") else None
        if isinstance(fact, dict) and attribute_of(module, name) is not None:
            for method, text in fact["methods"].items():
                yield f"{name}.{method}", text


def attribute_of(module: str, name: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert module.startswith(error.name or "nothing")
        return None
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def default_of(node: ast.expr) -> Any:
    """Return the default value of an argument. The node is a literal, or a name in
    horovod.torch."""
    if isinstance(node, ast.Attribute):
        return getattr(default_of(node.value), node.attr)
    return getattr(horovod.torch, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def parse_arguments(text: str) -> list[tuple[str, Any]]:
    """Parse the names and defaults in a text such as "(tensor, name=None)", without * and **."""
    function = ast.parse(f"lambda {text[1:-1]}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    names = [argument.arg for argument in function.args.args]
    without_default = [inspect.Parameter.empty] * (len(names) - len(function.args.defaults))
    return list(
        zip(names, [*without_default, *map(default_of, function.args.defaults)], strict=True)
    )


def has_arguments(function: Callable[..., Any], expected: list[tuple[str, Any]]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    named_parameters = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True  # a function with *args and **kwargs takes any arguments
    extra_parameters = named_parameters[len(expected) :]
    return (
        len(named_parameters) >= len(expected)
        and all(p.default is not p.empty for p in extra_parameters)
        and all(
            p.name == name and default in (p.default, p.empty)
            for p, (name, default) in zip(named_parameters, expected, strict=False)
        )
    )


@pytest.mark.parametrize("module", MODULES)
def test_names_exist_unless_the_guide_says_that_they_are_missing(module: str) -> None:
    missing_names = {name for name, _ in public_names(module) if attribute_of(module, name) is None}
    listed_names: set[str] = set()
    for modules, second_cell in rows("Missing names"):
        names = set(re.findall("`([^`]+)`", re.split("[:(]", second_cell)[0]))
        if module in modules:
            all_names = {name for name, _ in public_names(module)}
            listed_names |= all_names - names if second_cell.startswith("all") else names
    assert missing_names == listed_names


@pytest.mark.parametrize("module", MODULES)
def test_arguments_are_those_of_horovod(module: str) -> None:
    different_functions = {
        name: list(inspect.signature(ours).parameters)
        for name, text in public_names(module)
        if text is not None
        and (ours := attribute_of(module, name)) is not None
        and text != "(*args, **kwargs)"  # Horovod passes the arguments to another library
        and not has_arguments(ours, parse_arguments(text))
    }
    assert not different_functions


@pytest.mark.parametrize("module", SURFACE["other_modules"])
def test_other_modules_do_not_exist(module: str) -> None:
    """If one of these modules existed here, horovod_surface.json would have to list its names."""
    with pytest.raises(ImportError):
        importlib.import_module(module)
    framework = ".".join(module.split(".")[:2])
    assert re.search(rf"`{framework}`.*raise an ImportError", PAGE.read_text(), re.DOTALL)
