"""Gather sparse arrays by sending only the elements that are stored.

The ranks may store different elements. Two allgathers in one batch collect the indices and the
values of all ranks. Each rank sends the sizes of its array before its indices, so that all ranks
see whether the sizes differ. Ranks that have called join() have no elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from farandole import arguments
from farandole.arrays import Array, Arrays
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allgather, return_array_and_rows, start_batch
from farandole.reduce_op import Average, AverageOfPresent, ReduceOp, Sum, checked_op


class SparseRows(NamedTuple):
    """The sparse elements that all ranks contributed. If an index occurs several times, the caller
    must add up its values."""

    sizes: list[int]  # the sizes of the dimensions that have indices
    indices: Array  # one row for each element
    values: Array
    present_count: int  # how many ranks have not called join()


def checked_sparse_op(op: ReduceOp | int) -> ReduceOp:
    known_op = checked_op(op)
    if known_op not in (Sum, Average, AverageOfPresent):
        raise CallError(
            "a sparse allreduce needs the op Sum, Average or AverageOfPresent; got "
            f"{known_op.name}: convert the tensor to a dense one (an optimizer does that with "
            "sparse_as_dense=True)"
        )
    return known_op


# size waiver: a sparse array has three parts
def start_gather(
    arrays: Arrays, sizes: Array, indices: Array, values: Array, name: str | None, group: Group
) -> Callable[[], SparseRows]:
    """Start to gather all ranks' elements. Return a function that waits for these elements, and
    raises CallError if the ranks' sizes differ. `sizes` is one row of the dtype of `indices`."""
    gather = Allgather(group)
    inputs = (arrays.concatenate((sizes, indices)), values)
    handle = start_batch(arrays, (gather, gather), inputs, name, return_array_and_rows)

    def wait_for_rows() -> SparseRows:
        (rows, counts), (all_values, _) = handle.wait()
        # A rank that has called join() has no rows. Every other rank has a row with its sizes.
        present_counts = [count for count in counts if count > 0]
        ends = list(itertools.accumulate(present_counts))
        begins = [0, *ends[:-1]]
        sizes_by_rank = [rows[begin].tolist() for begin in begins]
        if any(other != sizes_by_rank[0] for other in sizes_by_rank):
            raise CallError(
                f"the sparse tensors `{arguments.call_name(name)}` have different sizes on the "
                f"ranks: {sizes_by_rank}, in the order of the ranks; all ranks must give the same "
                "size"
            )
        index_parts = [rows[begin + 1 : end] for begin, end in zip(begins, ends, strict=True)]
        indices = arrays.concatenate(index_parts)
        return SparseRows(sizes_by_rank[0], indices, all_values, len(present_counts))

    return wait_for_rows
