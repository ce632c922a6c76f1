"""Checks of the tensors of one call: how many there are, and whether their dtypes and sizes match.

The checks come before anything is sent, so that no output is half written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.errors import CallError
from farandole.torch.tensors import check_memory

Tensors = Sequence[torch.Tensor]


def check_dense(tensor: torch.Tensor) -> None:
    """Raise CallError unless the engine can read the tensor's memory."""
    if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
        raise CallError(
            f"the tensor's layout is {tensor.layout}, but only all_reduce and reduce take sparse "
            "tensors, and only of the layout torch.sparse_coo: call tensor.to_dense() on all "
            "ranks, and make embeddings with sparse=False"
        )
    check_memory(tensor)


def check_count(function: str, kind: str, tensors: Sequence[Any], size: int) -> None:
    if len(tensors) != size:
        raise CallError(
            f"{function} got {len(tensors)} {kind} for a group of {size} ranks: give one for each "
            "rank of the group"
        )


def check_dtypes(function: str, tensors: Tensors) -> None:
    dtypes = dict.fromkeys(str(tensor.dtype) for tensor in tensors)
    if len(dtypes) > 1:
        raise CallError(
            f"{function} got tensors of different dtypes: {', '.join(dtypes)}; all inputs and "
            "outputs must have the same dtype"
        )


def check_pairs(function: str, outputs: Tensors, inputs: Tensors) -> None:
    """Raise CallError unless there is one output for each input, with the dtype of that input."""
    if len(outputs) != len(inputs):
        raise CallError(
            f"{function} got lists of different lengths, {len(outputs)} for the outputs and "
            f"{len(inputs)} for the inputs: give one output for each input"
        )
    for pair in zip(outputs, inputs, strict=True):
        check_dtypes(function, pair)


def split_by_rows(kind: str, tensor: torch.Tensor, rows: Sequence[int], size: int) -> Tensors:
    """Split the rows of the input or output of all_to_all_single into a part for each rank. `rows`
    has the number of rows of each part; if it is empty, all parts have the same number."""
    if rows:
        check_count("all_to_all_single", f"{kind}_split_sizes", rows, size)
        return tensor.split(list(rows))
    row_count = len(tensor) if tensor.dim() > 0 else 1
    if row_count % size:
        raise CallError(
            f"the {kind} of all_to_all_single has {row_count} rows (shape {list(tensor.shape)}), "
            f"which cannot be divided evenly among the {size} ranks of the group: make the first "
            f"dimension a multiple of {size}, or give {kind}_split_sizes"
        )
    tensor = tensor.reshape(row_count, -1) if tensor.dim() == 0 else tensor
    return tensor.split(row_count // size) if row_count > 0 else [tensor] * size
