"""Read the configuration file of `horovodrun`: YAML with the values of its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from horovod.runner.flags import FLAGS, Flag

CONTROLLERS = ("gloo", "mpi")
SECTIONS = {flag.key[0] for flag in FLAGS if flag.key is not None}


def read_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values by the names of their flags, and the unknown keys of the file.

    Raises a ValueError that names the key, its value and the allowed values, or an OSError if the
    file cannot be read.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {error}") from None
    if content is None:
        return {}, []
    if not isinstance(content, dict):
        raise ValueError(f"it must contain sections such as params and timeline; got {content!r}")
    values: dict[str, Any] = {}
    controller = content.pop("controller", None)
    if controller is not None:
        if controller not in CONTROLLERS:
            raise ValueError(
                f"controller is {controller!r}; it must be one of {', '.join(CONTROLLERS)}"
            )
        values[f"use_{controller}"] = True
    flag_by_key = {flag.key: flag for flag in FLAGS if flag.key is not None}
    unknown_keys = []
    for (section, key), value in _entries(content):
        flag = flag_by_key.get((section, key))
        if flag is None:
            unknown_keys.append(f"{section}.{key}" if key else section)
        elif value is not None:
            values[flag.name] = _checked_value(flag, f"{section}.{key}", value)
    return values, unknown_keys


def _entries(content: dict[Any, Any]) -> list[tuple[tuple[str, str], Any]]:
    key_value_pairs: list[tuple[tuple[str, str], Any]] = []
    for section, entries in content.items():
        if isinstance(entries, dict):
            key_value_pairs += (((str(section), str(key)), value) for key, value in entries.items())
        elif entries is not None or section not in SECTIONS:
            key_value_pairs.append(((str(section), ""), entries))
    return key_value_pairs


def _checked_value(flag: Flag, key: str, value: Any) -> Any:
    if flag.type is None:
        if not isinstance(value, bool):
            raise ValueError(f"{key} is {value!r}; it must be true or false")
        return value
    try:
        converted = flag.type(str(value))
    except ValueError:
        kind = "a whole number" if flag.type is int else "a number"
        raise ValueError(f"{key} is {value!r}; it must be {kind}") from None
    problem = flag.problem_of(converted)
    if problem:
        raise ValueError(f"{key} is {value!r}; {problem}")
    return converted
