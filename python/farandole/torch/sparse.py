"""Sparse tensors: only the elements that are there travel.

Each rank has others, so all are gathered, by two calls in a batch: their places and their values.
The sizes of the tensor lead its places: so all ranks learn, and tell alike, where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from farandole import arguments
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.operations import Allgather, Received, with_rows
from farandole.reduce_op import Average, ReduceOp, Sum, checked
from farandole.torch.calls import start_batch


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: Group = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts to sum or average a sparse tensor (torch.sparse_coo), and returns a function that
    waits for the result and returns it, a coalesced sparse tensor.

    Meant for gradients of embeddings: it moves the elements of all ranks to all ranks, which is
    less than the whole tensor only while few are there. The result carries no gradient. An Average
    of integers is cut off toward zero. The function raises CallError where the ranks' sizes differ.
    """
    op = checked(op)
    if op not in (Sum, Average):
        raise CallError(f"a sparse allreduce can only Sum or Average; got {op.name}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise CallError(
            f"sparse_allreduce_async() needs a tensor of the layout torch.sparse_coo; got {kind}: "
            "use allreduce_async()"
        )
    given = tensor.detach().coalesce()
    dimensions = given.sparse_dim()
    sizes = given.indices().new_tensor([given.shape[:dimensions]])
    places = torch.cat((sizes, given.indices().t()))
    gather = Allgather(process_set)
    handle = start_batch([gather, gather], [places, given.values()], name, with_rows)

    def finish() -> torch.Tensor:
        gathered, (values, _) = handle.wait()
        sizes, places = _apart(gathered, arguments.call_name(name))
        shape = (*sizes, *given.shape[dimensions:])
        total = sparse_of(places.t(), values, shape).coalesce()
        return total if op is Sum else _divided(total, process_set.size())

    return finish


def _apart(gathered: Received, name: str) -> tuple[list[int], torch.Tensor]:
    """The sizes, which all must have alike, and the places of all elements."""
    rows, counts = gathered
    is_place = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    is_place[torch.tensor([0, *counts[:-1]]).cumsum(0)] = False
    sizes = rows[~is_place].tolist()
    if any(other != sizes[0] for other in sizes):
        raise CallError(
            f"the sparse tensors `{name}` have different sizes on the ranks: {sizes}, in the order "
            "of the ranks; give all the same"
        )
    return sizes[0], rows[is_place]


def _divided(total: torch.Tensor, count: int) -> torch.Tensor:
    values = total.values()
    mean = (
        values / count if values.is_floating_point() else values.div(count, rounding_mode="trunc")
    )
    return sparse_of(total.indices(), mean, total.shape, is_coalesced=True)


def sparse_of(
    places: torch.Tensor, values: torch.Tensor, shape: Sequence[int], is_coalesced: bool = False
) -> torch.Tensor:
    """Places that come out of sparse tensors of this shape need no check."""
    return torch.sparse_coo_tensor(
        places, values, shape, check_invariants=False, is_coalesced=is_coalesced
    )
