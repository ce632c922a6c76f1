"""Nested Python values as JSON text plus a list of tensors: how state travels without pickle.

A reader can build nothing from it but dictionaries, lists, tuples, numbers, text and tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import CallError

# JSON has no tuples, tensors or keys that are not text: those become {mark: ...}.
_TUPLE, _DICT, _TENSOR = "tuple", "dict", "tensor"


def encode(value: object, is_tensor: Callable[[object], bool]) -> tuple[str, list[Any]]:
    """The text, and the tensors that it refers to by their place in the list."""
    tensors: list[Any] = []

    def plain(part: object, path: str) -> object:
        if is_tensor(part):
            tensors.append(part)
            return {_TENSOR: len(tensors) - 1}
        if part is None or isinstance(part, (bool, int, float, str)):
            return part
        if isinstance(part, list):
            return [plain(item, f"{path}[{index}]") for index, item in enumerate(part)]
        if isinstance(part, tuple):
            items = [plain(item, f"{path}[{index}]") for index, item in enumerate(part)]
            return {_TUPLE: items}
        if isinstance(part, dict):
            pairs = [[plain(key, path), plain(v, f"{path}[{key!r}]")] for key, v in part.items()]
            return {_DICT: pairs}
        raise CallError(
            f"{path or 'the value'} is of the type {type(part).__name__}, which cannot be sent; "
            "numbers, text, tensors, lists, tuples and dictionaries can"
        )

    return json.dumps(plain(value, "")), tensors


def decode(text: str, tensors: Sequence[Any]) -> Any:
    """The value again."""

    def rebuild(part: Any) -> Any:
        if isinstance(part, list):
            return [rebuild(item) for item in part]
        if not isinstance(part, dict):
            return part
        if _TENSOR in part:
            return tensors[part[_TENSOR]]
        if _TUPLE in part:
            return tuple(rebuild(item) for item in part[_TUPLE])
        return {rebuild(key): rebuild(item) for key, item in part[_DICT]}

    return rebuild(json.loads(text))
