"""Find which parameters of the ranks belong together.

Parameters with the same name belong together. Parameters without names are paired by their order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence

from farandole.arrays import Array, Arrays
from farandole.comparison import equal_on_all_members, gather_texts, table
from farandole.errors import CallError
from farandole.group import Group


def in_common_order(
    arrays: Arrays,
    parameters: Sequence[Array],
    names: Mapping[int, str],
    call_name: str,
    group: Group,
    details: Callable[[Array], str] = lambda _: "",
) -> list[Array]:
    """Return the parameters in an order that is the same on all members.

    All members must call it, with the same `call_name`.

    Args:
        arrays: The frontend's functions on arrays.
        parameters: The parameters of this rank.
        names: The names by id(). Parameters without a name stay in their order.
        call_name: The name of the allreduce that compares the ranks.
        group: The group of ranks.
        details: Returns further properties of a parameter, as text, which must be the same on all
            members.

    Raises:
        CallError: The members do not have the same names, dtypes, shapes and details. The text is
            the same on all of them.
    """

    def description_of(parameter: Array) -> str:
        name = names.get(id(parameter), "")
        shown_name = f"`{name}` " if name else ""
        properties = arrays.dtype_and_shape(parameter) + details(parameter)
        return f"{shown_name}({properties})"

    ordered = sorted(parameters, key=lambda parameter: names.get(id(parameter), ""))
    descriptions = [description_of(parameter) for parameter in ordered]
    text = json.dumps(descriptions).encode()
    if equal_on_all_members(text, call_name, group):
        return ordered
    descriptions_by_rank = {
        rank: json.loads(text) for rank, text in gather_texts(text, call_name, group).items()
    }
    columns = itertools.zip_longest(*descriptions_by_rank.values(), fillvalue="none")
    index, different_parameters = next(
        (i, column) for i, column in enumerate(columns) if len(set(column)) > 1
    )
    rows = {
        rank: f"number {index} of {len(own)}: {parameter}"
        for (rank, own), parameter in zip(
            descriptions_by_rank.items(), different_parameters, strict=True
        )
    }
    raise CallError(
        "the optimizers of the ranks do not have the same parameters (by name, or without "
        f"named_parameters by their order, counted from 0):\n{table(rows)}\n"
        "Build the same model on all ranks, with the same groups if there are any, and give "
        "named_parameters=model.named_parameters(). If there are several optimizers, all ranks "
        "must use them in the same order"
    )
