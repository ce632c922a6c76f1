"""Check that the parameters are the same on all ranks, bit by bit.

If the parameters are equal, the check takes one small allreduce. If they differ, the ranks exchange
their digests to find the first parameter that differs. Ranks that have joined take no part.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farandole import arguments
from farandole.arrays import Array, Arrays, can_be_sent
from farandole.comparison import (
    equal_on_all_members,
    error_text_of,
    exchange,
    rank_list,
    table,
    variants,
)
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allreduce, array_only, start
from farandole.reduce_op import Max, Min

_DIGEST_BYTES = 16
_NAME = "check_parameters"  # of a call that the program has not named

ADVICE = (
    "Give all ranks the same values: broadcast_parameters(model.state_dict(), root_rank=0) after "
    "the model is built and after a checkpoint is loaded"
)


class ParameterDigest(NamedTuple):
    kind: str  # dtype and shape
    digest: str  # of the bytes of the parameter


def check(
    arrays: Arrays,
    params: Any,
    process_set: Group,
    name: str | None,
    *,
    when: str = "",
    advice: str,
) -> None:
    """Raise CallError, with the same text on all ranks, if the parameters differ.

    `params` has names and arrays, or arrays alone. The text of the error contains `when`, the time
    of the check, and ends with `advice`.
    """
    arguments.group_number(process_set)
    base = arguments.call_name(name) or _NAME
    named: dict[str, Array] = {}
    own: dict[str, ParameterDigest] = {}

    def read() -> None:
        named.update(_named(arrays, params))
        own.update({key: _read(arrays, key, array) for key, array in named.items()})

    failure = error_text_of(read)
    mine = json.dumps([failure, sorted(own.items())]).encode()
    if equal_on_all_members(mine, f"{base}.same", process_set) and not failure:
        return
    mine = json.dumps([failure, list(own.items())]).encode()
    texts = exchange(mine, base, process_set)
    reports = {rank: json.loads(text) for rank, text in texts.items()}
    found = find_difference(
        {
            rank: report[0] or {name: ParameterDigest(*fields) for name, fields in report[1]}
            for rank, report in reports.items()
        }
    )
    spread = ""
    if found.only_values_differ:
        spread = _measure_spread(arrays, named[found.name], f"{base}.spread", process_set)
    text = f"the parameters {found.problem}{when}: {found.details}"
    text += f"\n  {spread}" if spread else ""
    text += f"\n{advice}" if advice and not found.failed else ""
    raise CallError(text)


def _named(arrays: Arrays, params: Any) -> dict[str, Array]:
    if arrays.is_array(params) or not isinstance(params, Iterable):
        raise CallError(
            "params must be model.named_parameters(), model.state_dict() or a list of tensors; it "
            f"is of the type {type(params).__name__}"
        )
    entries = params.items() if isinstance(params, Mapping) else params
    named: dict[str, Array] = {}
    for index, entry in enumerate(entries):
        key, array = entry if isinstance(entry, tuple) and len(entry) == 2 else (index, entry)
        if str(key) in named:
            raise CallError(f"params has the name `{key}` twice; give each tensor its own")
        if not arrays.is_array(array):
            raise CallError(
                f"params has `{key}` of the type {type(array).__name__}, but only tensors can be "
                "compared: leave it out"
            )
        named[str(key)] = array
    return named


def _read(arrays: Arrays, key: str, array: Array) -> ParameterDigest:
    if why := arrays.why_unreadable(array):
        raise CallError(f"`{key}` is {why}, and has no bytes to compare: leave it out")
    digest = hashlib.blake2b(arrays.bytes_of(array), digest_size=_DIGEST_BYTES)
    return ParameterDigest(arrays.dtype_and_shape(array), digest.hexdigest())


def _measure_spread(arrays: Arrays, array: Array, name: str, process_set: Group) -> str:
    """Describe how far the values of a parameter differ. The parameter must have the same dtype and
    shape on all ranks, and all ranks must make this call."""
    values = arrays.contiguous_on_host(array)
    if not can_be_sent(arrays, values) or arrays.dtype_and_shape(values).startswith("bool"):
        return ""
    largest, smallest = (
        start(arrays, Allreduce(process_set, op), values, name, array_only, waits=True).wait()
        for op in (Max, Min)
    )
    difference = arrays.largest_difference(largest, smallest)
    if difference == 0:
        return "the values are the same, the bits are not: one rank has 0.0, another one -0.0"
    if not math.isfinite(difference):
        return "some of the values are NaN or infinite"
    return f"the values of an element are up to {difference:.3g} apart"


@dataclass(frozen=True)
class Difference:
    details: str
    name: str = ""
    only_values_differ: bool = False  # names, dtypes and shapes are equal
    failed: bool = False  # a rank could not read its parameters

    @property
    def problem(self) -> str:
        return "cannot be compared" if self.failed else "are not the same on all ranks"


def find_difference(by_rank: Mapping[int, str | dict[str, ParameterDigest]]) -> Difference:
    """Describe what differs between ranks. `by_rank` has the digests of each rank's parameters or,
    if the rank could not read them, the text of its error."""
    failures = {rank: own for rank, own in by_rank.items() if isinstance(own, str)}
    if failures:
        return Difference(
            f"{rank_list(sorted(failures))} cannot read them\n{table(failures)}", failed=True
        )
    parameters = {rank: own for rank, own in by_rank.items() if isinstance(own, dict)}
    names = list(dict.fromkeys(name for own in parameters.values() for name in own))
    for name in names:
        if any(name not in own for own in parameters.values()):
            return _missing(name, parameters)
    differing = [name for name in names if len({parameters[rank][name] for rank in parameters}) > 1]
    return _unequal(differing, len(names), parameters)


def _missing(name: str, parameters: Mapping[int, dict[str, ParameterDigest]]) -> Difference:
    lacking = [rank for rank, own in parameters.items() if name not in own]
    rows = {}
    for rank, own in parameters.items():
        row = f"{len(own)} parameter{'' if len(own) == 1 else 's'}"
        if name in own:
            row += f", `{name}` is {own[name].kind}"
        elif unshared := [key for key in own if any(key not in p for p in parameters.values())]:
            row += f", among them `{unshared[0]}`, which others do not have"
        rows[rank] = row
    do = "does" if len(lacking) == 1 else "do"
    return Difference(f"{rank_list(lacking)} {do} not have `{name}`\n{table(rows)}", name)


def _unequal(
    differing: Sequence[str], count: int, parameters: Mapping[int, dict[str, ParameterDigest]]
) -> Difference:
    first = differing[0]
    kinds = {own[first].kind for own in parameters.values()}
    only_values_differ = len(kinds) == 1
    rows = {
        rank: f"digest {own[first].digest[:16]}" if only_values_differ else own[first].kind
        for rank, own in parameters.items()
    }
    text = f"{len(differing)} of {count} "
    text += "differs, " if len(differing) == 1 else "differ, the first is "
    text += f"`{first}`{f' ({kinds.pop()})' if only_values_differ else ''}{_minority(rows)}\n"
    return Difference(text + table(rows), first, only_values_differ)


def _minority(rows: Mapping[int, str]) -> str:
    (majority, _), *others = variants(rows)
    rest = sorted(rank for ranks, _ in others for rank in ranks)
    if len(rest) >= len(majority):
        return ""
    return f"; {rank_list(rest)} {'differs' if len(rest) == 1 else 'differ'} from the others"
