"""Compare texts, one from each rank, and find the ranks that differ.

Ranks that have called join() take no part in the comparison.
"""

from __future__ import annotations

import ctypes
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence

from farandole import arguments, calls, core
from farandole.errors import text_for_other_ranks
from farandole.group import Group
from farandole.reduce_op import Max, ReduceOp, Sum

_DIGEST_BYTES = 16
_ROWS_SHOWN_MAX = 8
_RANK_LIST_CHARACTERS_MAX = 60


def equal_on_all_members(text: bytes, name: str, process_set: Group) -> bool:
    """Return whether all members have the same text. This takes one allreduce of 32 bytes with the
    name `name`."""
    words = array("q", hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest())
    count = len(words)
    # The allreduce finds the largest word and the largest complement at each index. The largest
    # complement belongs to the smallest word, so together, both results show if all words are
    # equal.
    maxima = allreduce_max([*words, *(~word for word in words)], name, process_set)
    return all(maxima[i] == ~maxima[count + i] for i in range(count))


def allreduce_max(numbers: Sequence[int], name: str, process_set: Group) -> list[int]:
    """Return, for each index, the largest number that any member has at this index."""
    memory = array("q", numbers)
    _reduce(memory, "int64", Max, name, process_set)
    return memory.tolist()


def gather_texts(text: bytes, name: str, process_set: Group) -> dict[int, bytes]:
    """Return the texts of the members, by world rank.

    Members whose text is empty, and ranks that have called join(), have no entry. The names of the
    calls begin with `name`; if `name` is empty, the engine chooses the names.
    """
    size, own_index = process_set.size(), process_set.rank()
    lengths = array("q", bytes(8 * size))
    lengths[own_index] = len(text)
    _reduce(lengths, "int64", Sum, name and f"{name}.lengths", process_set)
    width = max(lengths)
    memory = bytearray(size * width)
    memory[own_index * width : own_index * width + len(text)] = text
    _reduce(memory, "uint8", Sum, name and f"{name}.texts", process_set)
    texts = (bytes(memory[i * width : i * width + length]) for i, length in enumerate(lengths))
    return {rank: text for rank, text in zip(process_set.ranks or [], texts, strict=True) if text}


def texts_if_different(text: str, name: str, process_set: Group) -> dict[int, str]:
    """Return the texts of the members, by rank. If all texts are equal, return an empty dict, after
    one allreduce of 32 bytes."""
    if equal_on_all_members(text.encode(), name, process_set):
        return {}
    texts = gather_texts(text.encode(), name, process_set)
    return {rank: member_text.decode() for rank, member_text in texts.items()}


def error_text_of(action: Callable[[], object]) -> str:
    """Run `action`. Return its error as a text for the other ranks, or "" if there is none.

    The other ranks wait for this text, so this rank must send it before it raises the error.
    """
    try:
        action()
    except Exception as error:
        return text_for_other_ranks(error)
    return ""


def gather_error_texts(problem: str, name: str, process_set: Group) -> dict[int, str]:
    """Return the errors of the members, by rank. A member without an error has no entry. `problem`
    is this rank's error, or "".

    If no rank has a problem, this takes one allreduce of 32 bytes.
    """
    text = problem.encode(errors="replace")
    if equal_on_all_members(text, name, process_set) and not problem:
        return {}
    texts = gather_texts(text, name, process_set)
    return {rank: text.decode() for rank, text in texts.items()}


def _reduce(
    memory: array[int] | bytearray, dtype: str, op: ReduceOp, name: str, process_set: Group
) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    view = core.BufferView(core.dtypes[dtype], (len(memory),), address, address)
    group = arguments.group_number(process_set)
    call = core.allreduce(name, group, view, op, 1.0, 1.0)
    calls.run(call, memory)


def variants(rows: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Group the ranks that have the same row; the smallest groups come last."""
    ranks_by_row: dict[str, list[int]] = {}
    for rank, row in sorted(rows.items()):
        ranks_by_row.setdefault(row, []).append(rank)
    return sorted(
        ((ranks, row) for row, ranks in ranks_by_row.items()),
        key=lambda variant: (-len(variant[0]), variant[0]),
    )


def table(rows: Mapping[int, str]) -> str:
    """Return a table: each line has one variant and the ranks that have it. If there are more than
    _ROWS_SHOWN_MAX variants, the last line lists the ranks of all other variants."""
    all_variants = variants(rows)
    shown, hidden_variants = all_variants[:_ROWS_SHOWN_MAX], all_variants[_ROWS_SHOWN_MAX:]
    labels = [rank_list(ranks) for ranks, _ in shown]
    width = max(map(len, labels))
    lines = [f"  {label:{width}}   {row}" for label, (_, row) in zip(labels, shown, strict=True)]
    if hidden_variants:
        hidden_ranks = rank_list(sorted(rank for ranks, _ in hidden_variants for rank in ranks))
        noun = "variant" if len(hidden_variants) == 1 else "variants"
        lines.append(f"  and {len(hidden_variants)} more {noun}: {hidden_ranks}")
    return "\n".join(lines)


def rank_list(ranks: Sequence[int]) -> str:
    """Return ascending ranks as text: "rank 3", "ranks 0-2, 5". Cut long lists."""
    ranges: list[str] = []
    first = 0
    for index, rank in enumerate(ranks):
        if index + 1 < len(ranks) and ranks[index + 1] == rank + 1:
            continue
        run = ranks[first : index + 1]  # ranks without a gap
        ranges += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
        first = index + 1
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(ranges)
    if len(text) <= _RANK_LIST_CHARACTERS_MAX:
        return text
    count = f" … ({len(ranks)} ranks)"
    return text[: text.rindex(",", 0, _RANK_LIST_CHARACTERS_MAX - len(count)) + 1] + count
