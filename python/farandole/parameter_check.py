"""Are the parameters the same on all ranks, bit by bit? For every frontend: it brings their names
and digests.

When they are, that costs one allreduce of 32 bytes. Only when they are not do the ranks tell each
other what they have. Everything is summed or compared by allreduce, which goes on when some ranks
have joined: those do not count.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farandole import arguments, calls, core
from farandole.errors import CallError
from farandole.group import Group
from farandole.handle import PreparedCall
from farandole.reduce_op import Max, ReduceOp, Sum

_DIGEST_BYTES = 16
_ROWS_SHOWN_MAX = 8
_RANKS_SHOWN_MAX = 60  # characters


class Parameter(NamedTuple):
    kind: str  # dtype and shape
    digest: str  # of its bits


@dataclass(frozen=True)
class Reader:
    """What a frontend knows of its tensors. Both may raise; `spread` is a call of all ranks."""

    # The parameters of this rank by name, in their order.
    parameters: Callable[[], dict[str, Parameter]]
    # A sentence about how far the values of this one are apart, or nothing.
    spread: Callable[[str], str]


def digest_of(memory: Any) -> str:
    """Of the bytes of a tensor: anything with the buffer protocol."""
    return hashlib.blake2b(memory, digest_size=_DIGEST_BYTES).hexdigest()


def check(
    reader: Reader, process_set: Group, name: str | None = None, when: str = "", advice: str = ""
) -> None:
    """Raises CallError, with the same text on all ranks, if the parameters differ.

    `when` says at what time they differ, `advice` stands at the end of the text.
    """
    arguments.group_number(process_set)
    base = arguments.call_name(name)
    failure, own = "", dict[str, Parameter]()
    try:
        own = reader.parameters()
    except Exception as error:  # the others must be told: they are in the same call
        failure = str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
    mine = json.dumps([failure, sorted(own.items())]).encode()
    if _same_everywhere(mine, base and f"{base}.same", process_set) and not failure:
        return
    mine = json.dumps([failure, list(own.items())]).encode()
    said = _exchange(mine, base, process_set)
    ranks = process_set.ranks or []
    reports = {
        rank: json.loads(text) for rank, text in zip(ranks, said, strict=True) if text
    }  # those that have joined say nothing
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
    is_of_values: bool = False  # same name, dtype and shape everywhere
    failed: bool = False  # nothing could be compared

    @property
    def problem(self) -> str:
        return "cannot be compared" if self.failed else "are not the same on all ranks"


def difference(of_ranks: Mapping[int, str | dict[str, Parameter]]) -> Difference:
    """What differs between ranks, of which each has its parameters, or says why it has none."""
    failures = {rank: [said] for rank, said in of_ranks.items() if isinstance(said, str)}
    if failures:
        return Difference(
            f"{rank_list(sorted(failures))} cannot read them\n{_table(failures)}", failed=True
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
        rows[rank] = [row]
    do = "does" if len(lacking) == 1 else "do"
    return Difference(f"{rank_list(lacking)} {do} not have `{name}`\n{_table(rows)}", name)


def _unequal(
    differing: Sequence[str], count: int, parameters: Mapping[int, dict[str, Parameter]]
) -> Difference:
    first = differing[0]
    kinds = {own[first].kind for own in parameters.values()}
    is_of_values = len(kinds) == 1
    rows = {
        rank: [f"digest {own[first].digest[:16]}" if is_of_values else own[first].kind]
        for rank, own in parameters.items()
    }
    text = f"{len(differing)} of {count} "
    text += "differs, " if len(differing) == 1 else "differ, the first is "
    text += f"`{first}`{f' ({kinds.pop()})' if is_of_values else ''}{_minority(rows)}\n"
    return Difference(text + _table(rows), first, is_of_values)


def _variants(rows: Mapping[int, Sequence[str]]) -> list[tuple[list[int], Sequence[str]]]:
    """The ranks that have the same row, the odd ones last."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, row in sorted(rows.items()):
        ranks.setdefault(tuple(row), []).append(rank)
    return sorted(((who, row) for row, who in ranks.items()), key=lambda v: (-len(v[0]), v[0]))


def _minority(rows: Mapping[int, Sequence[str]]) -> str:
    (most, _), *others = _variants(rows)
    rest = sorted(rank for who, _ in others for rank in who)
    if len(rest) >= len(most):
        return ""
    return f"; {rank_list(rest)} {'is' if len(rest) == 1 else 'are'} at odds with the others"


def _table(rows: Mapping[int, Sequence[str]]) -> str:
    variants = _variants(rows)
    shown, rest = variants[:_ROWS_SHOWN_MAX], variants[_ROWS_SHOWN_MAX:]
    labels = [rank_list(who) for who, _ in shown]
    width = max(map(len, labels))
    lines = [
        f"  {label:{width}}   {'   '.join(row)}"
        for label, (_, row) in zip(labels, shown, strict=True)
    ]
    if rest:
        who = rank_list(sorted(rank for who, _ in rest for rank in who))
        lines.append(f"  and {len(rest)} more {'variant' if len(rest) == 1 else 'variants'}: {who}")
    return "\n".join(lines)


def rank_list(ranks: Sequence[int]) -> str:
    """Ascending ranks as people read them: "rank 3", "ranks 0-2, 5"; a long list is cut."""
    parts: list[str] = []
    first = 0
    for index, rank in enumerate(ranks):
        if index + 1 < len(ranks) and ranks[index + 1] == rank + 1:
            continue
        run = ranks[first : index + 1]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
        first = index + 1
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)
    if len(text) <= _RANKS_SHOWN_MAX:
        return text
    count = f" … ({len(ranks)} ranks)"
    return text[: text.rindex(",", 0, _RANKS_SHOWN_MAX - len(count)) + 1] + count


def _same_everywhere(text: bytes, name: str, process_set: Group) -> bool:
    words = array("q", hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest())
    count = len(words)
    # The largest of the complements is the complement of the smallest.
    extremes = array("q", [*words, *(~word for word in words)])
    _reduce(extremes, "int64", Max, name, process_set)
    return all(extremes[i] == ~extremes[count + i] for i in range(count))


def _exchange(text: bytes, name: str, process_set: Group) -> list[bytes]:
    """What each member says; nothing of those that have joined."""
    size, me = process_set.size(), process_set.rank()
    lengths = array("q", bytes(8 * size))
    lengths[me] = len(text)
    _reduce(lengths, "int64", Sum, name and f"{name}.lengths", process_set)
    width = max(lengths)
    table = bytearray(size * width)
    table[me * width : me * width + len(text)] = text
    _reduce(table, "uint8", Sum, name and f"{name}.texts", process_set)
    return [bytes(table[i * width : i * width + length]) for i, length in enumerate(lengths)]


def _reduce(
    memory: array[int] | bytearray, dtype: str, op: ReduceOp, name: str, process_set: Group
) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    view = core.BufferView(core.dtypes[dtype], (len(memory),), address, address)
    group = arguments.group_number(process_set)
    call = core.allreduce(name, group, view, op, 1.0, 1.0)
    calls.start(PreparedCall(call, memory, core.Engine.take), waits=True).wait()
