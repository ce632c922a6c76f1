"""Check that the parameters are the same on all ranks, bit by bit.

If the parameters are equal, the check takes one small allreduce. If they differ, the ranks exchange
their digests to find the first parameter that differs. Ranks that have called join() take no part.
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
    gather_texts,
    rank_list,
    table,
    variants,
)
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allreduce, return_array, start
from farandole.reduce_op import Max, Min

_DIGEST_BYTES = 16
_DEFAULT_CALL_NAME = "check_parameters"  # for a call that the program has not named

ADVICE = (
    "Give all ranks the same values: broadcast_parameters(model.state_dict(), root_rank=0) after "
    "the model is built and after a checkpoint is loaded"
)


class ParameterDigest(NamedTuple):
    kind: str  # dtype and shape
    digest: str  # the digest of the parameter's bytes


def check(
    arrays: Arrays,
    params: Any,
    process_set: Group,
    name: str | None,
    *,
    time_of_check: str = "",
    advice: str,
) -> None:
    """Raise CallError, with the same text on all ranks, if the parameters differ.

    `params` has names and arrays, or arrays alone. The text of the error contains `time_of_check`
    and ends with `advice`.
    """
    arguments.group_number(process_set)
    call_name = arguments.call_name(name) or _DEFAULT_CALL_NAME
    arrays_by_name: dict[str, Array] = {}
    own_digests: dict[str, ParameterDigest] = {}

    def read_digests() -> None:
        arrays_by_name.update(_arrays_by_name(arrays, params))
        own_digests.update(
            {key: _digest_of(arrays, key, array) for key, array in arrays_by_name.items()}
        )

    failure = error_text_of(read_digests)
    own_report = json.dumps([failure, sorted(own_digests.items())]).encode()
    if equal_on_all_members(own_report, f"{call_name}.same", process_set) and not failure:
        return
    own_report = json.dumps([failure, list(own_digests.items())]).encode()
    texts = gather_texts(own_report, call_name, process_set)
    reports = {rank: json.loads(text) for rank, text in texts.items()}
    difference = find_difference(
        {
            rank: report[0] or {name: ParameterDigest(*fields) for name, fields in report[1]}
            for rank, report in reports.items()
        }
    )
    spread = ""
    if difference.only_values_differ:
        spread = _measure_spread(
            arrays, arrays_by_name[difference.name], f"{call_name}.spread", process_set
        )
    text = f"the parameters {difference.problem}{time_of_check}: {difference.details}"
    text += f"\n  {spread}" if spread else ""
    text += f"\n{advice}" if advice and not difference.is_unreadable else ""
    raise CallError(text)


def _arrays_by_name(arrays: Arrays, params: Any) -> dict[str, Array]:
    if arrays.is_array(params) or not isinstance(params, Iterable):
        raise CallError(
            "params must be model.named_parameters(), model.state_dict() or a list of tensors; it "
            f"is of the type {type(params).__name__}"
        )
    entries = params.items() if isinstance(params, Mapping) else params
    arrays_by_name: dict[str, Array] = {}
    for index, entry in enumerate(entries):
        key, array = entry if isinstance(entry, tuple) and len(entry) == 2 else (index, entry)
        if str(key) in arrays_by_name:
            raise CallError(f"params has the name `{key}` twice; give each tensor its own")
        if not arrays.is_array(array):
            raise CallError(
                f"params has `{key}` of the type {type(array).__name__}, but only tensors can be "
                "compared: leave it out"
            )
        arrays_by_name[str(key)] = array
    return arrays_by_name


def _digest_of(arrays: Arrays, key: str, array: Array) -> ParameterDigest:
    if reason := arrays.why_unreadable(array):
        raise CallError(f"`{key}` is {reason}, and has no bytes to compare: leave it out")
    digest = hashlib.blake2b(arrays.bytes_of(array), digest_size=_DIGEST_BYTES)
    return ParameterDigest(arrays.dtype_and_shape(array), digest.hexdigest())


def _measure_spread(arrays: Arrays, array: Array, name: str, process_set: Group) -> str:
    """Describe how far the values of a parameter differ. The parameter must have the same dtype and
    shape on all ranks, and all ranks must make this call."""
    values = arrays.contiguous_on_host(array)
    if not can_be_sent(arrays, values) or arrays.dtype_and_shape(values).startswith("bool"):
        return ""
    largest, smallest = (
        start(arrays, Allreduce(process_set, op), values, name, return_array, blocking=True).wait()
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
    is_unreadable: bool = False  # a rank could not read its parameters

    @property
    def problem(self) -> str:
        return "cannot be compared" if self.is_unreadable else "are not the same on all ranks"


def find_difference(reports_by_rank: Mapping[int, str | dict[str, ParameterDigest]]) -> Difference:
    """Describe what differs between ranks. `reports_by_rank` has the digests of each rank's
    parameters or, if the rank could not read them, the text of its error."""
    failures = {
        rank: digests for rank, digests in reports_by_rank.items() if isinstance(digests, str)
    }
    if failures:
        return Difference(
            f"{rank_list(sorted(failures))} cannot read them\n{table(failures)}", is_unreadable=True
        )
    parameters = {
        rank: digests for rank, digests in reports_by_rank.items() if isinstance(digests, dict)
    }
    names = list(dict.fromkeys(name for digests in parameters.values() for name in digests))
    for name in names:
        if any(name not in digests for digests in parameters.values()):
            return _missing_difference(name, parameters)
    differing_names = [
        name for name in names if len({parameters[rank][name] for rank in parameters}) > 1
    ]
    return _unequal_difference(differing_names, len(names), parameters)


def _missing_difference(
    name: str, parameters: Mapping[int, dict[str, ParameterDigest]]
) -> Difference:
    lacking_ranks = [rank for rank, digests in parameters.items() if name not in digests]
    rows = {}
    for rank, digests in parameters.items():
        row = f"{len(digests)} parameter{'' if len(digests) == 1 else 's'}"
        if name in digests:
            row += f", `{name}` is {digests[name].kind}"
        elif unshared := [key for key in digests if any(key not in p for p in parameters.values())]:
            row += f", among them `{unshared[0]}`, which others do not have"
        rows[rank] = row
    verb = "does" if len(lacking_ranks) == 1 else "do"
    return Difference(f"{rank_list(lacking_ranks)} {verb} not have `{name}`\n{table(rows)}", name)


def _unequal_difference(
    differing_names: Sequence[str], count: int, parameters: Mapping[int, dict[str, ParameterDigest]]
) -> Difference:
    first_name = differing_names[0]
    kinds = {digests[first_name].kind for digests in parameters.values()}
    only_values_differ = len(kinds) == 1
    rows = {
        rank: f"digest {digests[first_name].digest[:16]}"
        if only_values_differ
        else digests[first_name].kind
        for rank, digests in parameters.items()
    }
    text = f"{len(differing_names)} of {count} "
    text += "differs, " if len(differing_names) == 1 else "differ, the first is "
    text += (
        f"`{first_name}`{f' ({kinds.pop()})' if only_values_differ else ''}{_minority_text(rows)}\n"
    )
    return Difference(text + table(rows), first_name, only_values_differ)


def _minority_text(rows: Mapping[int, str]) -> str:
    (majority, _), *others = variants(rows)
    minority = sorted(rank for ranks, _ in others for rank in ranks)
    if len(minority) >= len(majority):
        return ""
    return (
        f"; {rank_list(minority)} {'differs' if len(minority) == 1 else 'differ'} from the others"
    )
