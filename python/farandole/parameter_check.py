"""Check that the parameters are the same on all ranks, bit by bit.

Every frontend uses it and provides names and digests. If the parameters are equal, the check takes
one small allreduce. Only if they are not do the ranks exchange more. Ranks that have joined do not
count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farandole import arguments
from farandole.comparison import attempt, exchange, rank_list, same_everywhere, table, variants
from farandole.errors import CallError
from farandole.group import Group

_DIGEST_BYTES = 16


class Parameter(NamedTuple):
    kind: str  # dtype and shape
    digest: str  # of its bits


@dataclass(frozen=True)
class Reader:
    """How to read a frontend's tensors. Both functions may raise; all ranks must call `spread`."""

    # Returns the parameters of this rank by name, in their order.
    parameters: Callable[[], dict[str, Parameter]]
    # Returns a sentence about how far the values of this parameter differ, or "".
    spread: Callable[[str], str]


def digest_of(memory: Any) -> str:
    """Return the digest of a tensor's bytes, given as an object with the buffer protocol."""
    return hashlib.blake2b(memory, digest_size=_DIGEST_BYTES).hexdigest()


def check(
    reader: Reader, process_set: Group, name: str | None = None, when: str = "", advice: str = ""
) -> None:
    """Raise CallError, with the same text on all ranks, if the parameters differ.

    `when` says in the text at what time they differ; `advice` ends the text.
    """
    arguments.group_number(process_set)
    base = arguments.call_name(name)
    own: dict[str, Parameter] = {}
    failure = attempt(lambda: own.update(reader.parameters()))
    mine = json.dumps([failure, sorted(own.items())]).encode()
    if same_everywhere(mine, base and f"{base}.same", process_set) and not failure:
        return
    mine = json.dumps([failure, list(own.items())]).encode()
    said = exchange(mine, base, process_set)
    reports = {rank: json.loads(text) for rank, text in said.items()}
    found = difference(
        {
            rank: report[0] or {name: Parameter(*values) for name, values in report[1]}
            for rank, report in reports.items()
        }
    )
    spread = reader.spread(found.name) if found.is_of_values else ""
    text = f"the parameters {found.problem}{when}: {found.details}"
    text += f"\n  {spread}" if spread else ""
    text += f"\n{advice}" if advice and not found.failed else ""
    raise CallError(text)


@dataclass(frozen=True)
class Difference:
    details: str
    name: str = ""
    is_of_values: bool = False  # names, dtypes and shapes are equal; only values differ
    failed: bool = False  # a rank could not read its parameters

    @property
    def problem(self) -> str:
        return "cannot be compared" if self.failed else "are not the same on all ranks"


def difference(of_ranks: Mapping[int, str | dict[str, Parameter]]) -> Difference:
    """Find what differs between ranks. Each rank has its parameters, or a text why it has none."""
    failures = {rank: said for rank, said in of_ranks.items() if isinstance(said, str)}
    if failures:
        return Difference(
            f"{rank_list(sorted(failures))} cannot read them\n{table(failures)}", failed=True
        )
    parameters = {rank: said for rank, said in of_ranks.items() if isinstance(said, dict)}
    names = list(dict.fromkeys(name for own in parameters.values() for name in own))
    for name in names:
        if any(name not in own for own in parameters.values()):
            return _missing(name, parameters)
    differing = [name for name in names if len({parameters[rank][name] for rank in parameters}) > 1]
    return _unequal(differing, len(names), parameters)


def _missing(name: str, parameters: Mapping[int, dict[str, Parameter]]) -> Difference:
    lacking = [rank for rank, own in parameters.items() if name not in own]
    rows = {}
    for rank, own in parameters.items():
        row = f"{len(own)} parameter{'' if len(own) == 1 else 's'}"
        if name in own:
            row += f", `{name}` is {own[name].kind}"
        elif other := [key for key in own if any(key not in each for each in parameters.values())]:
            row += f", among them `{other[0]}`, which others do not have"
        rows[rank] = row
    do = "does" if len(lacking) == 1 else "do"
    return Difference(f"{rank_list(lacking)} {do} not have `{name}`\n{table(rows)}", name)


def _unequal(
    differing: Sequence[str], count: int, parameters: Mapping[int, dict[str, Parameter]]
) -> Difference:
    first = differing[0]
    kinds = {own[first].kind for own in parameters.values()}
    is_of_values = len(kinds) == 1
    rows = {
        rank: f"digest {own[first].digest[:16]}" if is_of_values else own[first].kind
        for rank, own in parameters.items()
    }
    text = f"{len(differing)} of {count} "
    text += "differs, " if len(differing) == 1 else "differ, the first is "
    text += f"`{first}`{f' ({kinds.pop()})' if is_of_values else ''}{_minority(rows)}\n"
    return Difference(text + table(rows), first, is_of_values)


def _minority(rows: Mapping[int, str]) -> str:
    (most, _), *others = variants(rows)
    rest = sorted(rank for who, _ in others for rank in who)
    if len(rest) >= len(most):
        return ""
    return f"; {rank_list(rest)} {'is' if len(rest) == 1 else 'are'} at odds with the others"
