"""The tables of the migration guide are correct and complete: calls, flags, keys and variables."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job import command
from migration_guide import PAGE, rows

import farandole.torch
import horovod.torch
from horovod.runner.flags import FLAGS
from horovod.runner.launch import make_parser

FRONTENDS = (farandole.torch, horovod.torch, horovod.torch.mpi_ops)


def calls() -> Iterator[tuple[str, list[str] | None]]:
    for names, _ in rows("Calls"):
        for text in names:
            name, _, arguments = text.partition("(")
            yield name, arguments.rstrip(")").split(", ") if arguments.strip(")") else None


def attribute_of(frontend: Any, name: str) -> Any:
    for part in name.split("."):
        frontend = getattr(frontend, part)
    return frontend


@pytest.mark.parametrize("frontend", FRONTENDS, ids=lambda module: module.__name__)
def test_calls_exist_with_these_arguments(frontend: Any) -> None:
    importlib.import_module("farandole.torch.elastic")
    for name, arguments in calls():
        if name.startswith("elastic.") and frontend is horovod.torch.mpi_ops:
            continue
        call = attribute_of(frontend, name)
        if arguments is not None:
            own_arguments = list(inspect.signature(call).parameters)
            assert own_arguments[: len(arguments)] == arguments, name


def test_the_table_lists_all_calls_of_horovod() -> None:
    horovod_surface = json.loads(Path(__file__).with_name("horovod_surface.json").read_text())
    functions_of_horovod = horovod_surface["modules"]["horovod.torch"].items()
    functions = {
        name
        for name, fact in functions_of_horovod
        if isinstance(fact, str) and fact.startswith("(")
    }
    listed_names = {name.partition(".")[0] for name, _ in calls()}
    assert set(farandole.torch.__all__) & functions <= listed_names


def test_listed_modules_can_be_imported() -> None:
    text = PAGE.read_text().partition("also has these modules")[2].partition("\n\n")[0]
    names = re.findall(r"`(horovod\.[\w.]+)`", text)
    assert len(names) == 25
    for name in names:
        if name == "horovod.run":
            assert callable(horovod.run)
        else:
            assert importlib.import_module(name)


def test_flags_are_those_of_the_parser() -> None:
    actions = make_parser()._actions
    accepted_flags = {name for action in actions for name in action.option_strings} - {
        "-h",
        "--help",
    }
    listed_names = [name for names, _ in rows("Flags of `horovodrun`") for name in names]
    assert sorted(listed_names) == sorted(accepted_flags)


def test_the_table_lists_the_flags_without_a_meaning() -> None:
    ignored = {
        name
        for flag in FLAGS
        if flag.why_ignored and not flag.to_run_flags and not flag.to_elastic_flags
        for name in (*flag.names, *flag.negating_names)
    }
    listed_names = {
        name
        for names, farandole_cell in rows("Flags of `horovodrun`")
        for name in names
        if farandole_cell.startswith("no meaning: ")
    }
    assert listed_names == ignored


def test_keys_of_the_file_are_those_of_the_flags() -> None:
    table = rows("Keys of the configuration file")
    listed_names = {
        (section[0], key)
        for section, keys in table
        for key in re.findall("`([^`]+)`", keys)
        if section[0] != "controller"
    }
    assert listed_names == {flag.key for flag in FLAGS if flag.key is not None}


def test_variables_are_those_of_the_knobs() -> None:
    knobs = subprocess.run(
        [command(1)[0], "knobs"], check=True, capture_output=True, text=True
    ).stdout
    known_variables = set(re.findall(r"HOROVOD_\w+", knobs))
    listed_names = {
        name
        for names, farandole_cell in rows("Variables")
        for name in names
        if farandole_cell.startswith(("understood", "set for every worker"))
        and "not read" not in farandole_cell
    }
    assert listed_names == known_variables
