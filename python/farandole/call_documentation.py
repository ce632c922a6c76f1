"""Explain the arguments of calls in their docstrings, with the same words for all calls."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

Call = TypeVar("Call", bound=Callable[..., Any])

_WIDTH = 88  # less than 100, because the site and help() indent docstrings

_INPUTS = {
    "value": "The input: a number, an array or a tensor.",
    "tensor": "The input, on any device and with any strides. It is not changed.",
    "tensors": "The inputs, a list or tuple. They are not changed. All members give the "
    "same number of tensors.",
}
_IN_PLACE_INPUTS = {
    "value": "The input: a number, an array or a tensor.",
    "tensor": "The input. The result replaces its values.",
    "tensors": "The inputs, a list or tuple. The results replace their values. All members give "
    "the same number of tensors.",
}
_ARGUMENTS = {
    "average": "Horovod's older way to give `op`: True means Average, False means Sum. Give either "
    "`average` or `op`.",
    "root_rank": "The rank that sends its values to all members. It is a rank of the world, even "
    "with a process_set.",
    "splits": "How many rows each member gets, in the order of the ranks, as a list or tensor of "
    "whole numbers. A grouped call needs a list with the splits of each tensor. None: all members "
    "get the same number.",
    "name": "The name of the call in errors, reports and the timeline, the same on all members. "
    "None: the call gets a number. If several threads make calls at the same time, all these calls "
    "need names.",
    "compression": "The form in which the tensor is sent, such as Compression.fp16.",
    "op": "Average (the default), Sum, Min, Max, Product, AverageOfPresent; for allreduce also "
    "Adasum.",
    "prescale_factor": "The tensor is multiplied by this number before the reduction.",
    "postscale_factor": "The result is multiplied by this number.",
    "process_set": "The group; by default all ranks. Its members must all make the call.",
    "device_dense": "Ignored. Scripts that were written for Horovod pass it.",
    "device_sparse": "Ignored.",
    "ignore_name_scope": "Ignored, because scopes are never part of a name.",
}
_ERRORS = {
    "CallError": "The members disagree, the call is invalid on a member (then all members get the "
    "same text), or an argument is wrong (then only this rank gets the error).",
    "GroupLostError": "A member has left or died.",
}
_ERRORS_OF_ASYNC_CALLS = "synchronize() raises the errors of the call."


def documented(call: Call) -> Call:
    """Add the meaning of the arguments, and the errors, to the docstring of a call on tensors."""
    inputs = _IN_PLACE_INPUTS if call.__name__.endswith("_") else _INPUTS
    meanings = inputs | _ARGUMENTS
    arguments = {name: meanings[name] for name in inspect.signature(call).parameters}
    text, *later_sections = re.split(r"\n(?=Returns:|Example::)", inspect.getdoc(call) or "")
    is_async = "_async" in call.__name__
    errors = _ERRORS_OF_ASYNC_CALLS if is_async else _section("Raises", _ERRORS)
    sections = [text, _section("Args", arguments), *later_sections, errors]
    call.__doc__ = "\n\n".join(part.strip("\n") for part in sections) + "\n"
    return call


def _section(title: str, entries: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *itertools.starmap(_wrapped_entry, entries.items())])


@functools.cache  # many calls have the same entries, so wrap each entry only once
def _wrapped_entry(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name}: {text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
    )
