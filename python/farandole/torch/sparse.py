"""Sum and average sparse tensors of torch. farandole.sparse_rows has the part that all frameworks
share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp, Sum
from farandole.sparse_rows import checked_sparse_op, start_gather
from farandole.torch import tensors as torch_tensors


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: Group = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start to sum or average a sparse tensor, and return a function that waits for the result.

    The function blocks, and returns a coalesced sparse tensor without a gradient. It raises
    CallError if the members' tensors have different sizes. An Average of integers is rounded toward
    zero.

    Use it for gradients of embeddings. It sends the elements of every rank to every other rank.
    This is less data than the dense tensor only if there are few elements.

    Args:
        tensor: A tensor of the layout torch.sparse_coo, with the same size and dtype on all ranks.
        name: The name of the call. With None, the call gets a number.
        op: Sum, Average or AverageOfPresent.
        process_set: The group.
    """
    return start_sparse(tensor, name, op, process_set)


def start_sparse(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: Group, mark_count: int = 0
) -> Callable[[], torch.Tensor]:
    """Do what sparse_allreduce_async() does, and insert `mark_count` dimensions of length 1 after
    the first dimension of the values. If the ranks give different numbers, the shapes differ, and
    all ranks get an error (see Marks in buckets.py)."""
    op = checked_sparse_op(op)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        given_type = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise CallError(
            "sparse_allreduce_async() needs a tensor of the layout torch.sparse_coo; got "
            f"{given_type}: use allreduce_async()"
        )
    # The rows are added up on the host. A GPU would add the rows of one index in any order, so the
    # ranks would get different bits.
    coalesced = tensor.detach().coalesce().cpu()
    sparse_dimensions = coalesced.sparse_dim()
    own_indices = coalesced.indices().t()
    own_sizes = own_indices.new_tensor([coalesced.shape[:sparse_dimensions]])
    own_values = coalesced.values()
    value_shape = tuple(own_values.shape[1:])
    marked_values = own_values
    if mark_count:
        marked_values = own_values.reshape(len(own_values), *(1,) * mark_count, *value_shape)
    wait_for_rows = start_gather(
        torch_tensors, own_sizes, own_indices, marked_values, name, process_set
    )

    def finish() -> torch.Tensor:
        sizes, indices, values, present_count = wait_for_rows()
        values = values.reshape(len(values), *value_shape) if mark_count else values
        shape = (*sizes, *coalesced.shape[sparse_dimensions:])
        total = sparse_of(indices.t(), values, shape).coalesce()
        if op is not Sum:
            total = divided(total, process_set.size() if op is Average else present_count)
        return total.to(tensor.device)

    return finish


def divided(total: torch.Tensor, count: int) -> torch.Tensor:
    """Divide a coalesced sparse tensor. Integers are rounded toward zero."""
    values = total.values()
    mean = (
        values / count if values.is_floating_point() else values.div(count, rounding_mode="trunc")
    )
    return sparse_of(total.indices(), mean, total.shape, is_coalesced=True)


def sparse_of(
    indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int], is_coalesced: bool = False
) -> torch.Tensor:
    """Make a sparse tensor. The indices need no check, because they come from sparse tensors of
    this shape."""
    return torch.sparse_coo_tensor(
        indices, values, shape, check_invariants=False, is_coalesced=is_coalesced
    )
