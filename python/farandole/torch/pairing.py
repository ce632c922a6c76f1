"""Which parameter of one rank belongs to which of the others: those of the same name, or without
names those in the same place."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence

import torch

from farandole.errors import CallError
from farandole.group import Group
from farandole.objects import allgather_object
from farandole.reduce_op import Max
from farandole.torch.operations import allreduce_


def paired(
    parameters: Sequence[torch.Tensor], names: Mapping[int, str], call_name: str, group: Group
) -> list[torch.Tensor]:
    """The parameters in an order that is the same on all members, so that those in one place belong
    together. `names` are theirs by id(); those without one stay in their order.

    All members call it, with one call_name. Raises CallError, with one text on all of them, unless
    they have the same names, dtypes and shapes.
    """
    ordered = sorted(parameters, key=lambda parameter: names.get(id(parameter), ""))
    mine = [_described(names.get(id(parameter), ""), parameter) for parameter in ordered]
    digest = zlib.crc32("\0".join(mine).encode())
    said = torch.tensor([len(mine), -len(mine), digest, -digest])
    allreduce_(said, name=call_name, op=Max, process_set=group)
    if said[0] == -said[1] and said[2] == -said[3]:
        return ordered
    of_all = allgather_object(mine, f"{call_name}.names", process_set=group)
    rows = itertools.zip_longest(*of_all, fillvalue="none")
    place, differing = next((i, row) for i, row in enumerate(rows) if len(set(row)) > 1)
    table = "\n".join(
        f"  rank {rank}   number {place} of {len(own)}: {it}"
        for rank, own, it in zip(group.ranks or (), of_all, differing, strict=True)
    )
    raise CallError(
        "the optimizers of the ranks do not have the same parameters (by name, or without "
        f"named_parameters by their order, counted from 0):\n{table}\nBuild the same model on all "
        "ranks, and give named_parameters=model.named_parameters()"
    )


def _described(name: str, parameter: torch.Tensor) -> str:
    dtype = str(parameter.dtype).removeprefix("torch.")
    shown = f"`{name}` " if name else ""
    return f"{shown}({dtype} {list(parameter.shape)})"
