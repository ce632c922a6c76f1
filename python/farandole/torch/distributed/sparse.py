"""The sum or mean of sparse tensors, such as the gradients of nn.EmbeddingBag(sparse=True).

Each rank sends the elements that it stores, in one message of bytes: a header, the indices, and the
values. The ranks may store different elements, but their headers must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.errors import CallError
from farandole.reduce_op import Average, Sum
from farandole.torch.distributed.reductions import Reduction
from farandole.torch.sparse import divided, sparse_of
from farandole.torch.tensors import DTYPE_CODES, check

_DTYPE_OF_CODE = {code: dtype for dtype, code in DTYPE_CODES.items()}
_INDEX_BYTES = torch.int64.itemsize


def check_sparse_reduction(reduction: Reduction) -> None:
    if reduction not in ((Sum, 1.0), (Average, 1.0)):
        raise CallError(
            "an all_reduce of a sparse tensor needs the op SUM or AVG: use tensor.to_dense() on "
            "all ranks, and make embeddings with sparse=False"
        )


def sparse_message(tensor: torch.Tensor) -> torch.Tensor:
    """Return the message of this rank. The header has the code of the dtype, the number of sparse
    dimensions, the number of dimensions, and their sizes."""
    # The rows are added up on the host: see start_sparse() in farandole.torch.sparse.
    coalesced = tensor.detach().coalesce().cpu()
    indices, values = coalesced.indices(), coalesced.values()
    check(values)
    header = (DTYPE_CODES[values.dtype], coalesced.sparse_dim(), coalesced.dim(), *coalesced.shape)
    return torch.cat([_as_bytes(torch.tensor(header)), _as_bytes(indices.t()), _as_bytes(values)])


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def store_sparse_total(
    tensor: torch.Tensor, messages: Sequence[torch.Tensor], reduction: Reduction
) -> None:
    """Add up the elements of all messages, in the order of the ranks, and write the sum or the mean
    into the tensor. Raise CallError if the headers differ."""
    # Ranks that have called join() send an empty message.
    sent_messages = [message for message in messages if len(message) > 0]
    headers = [_header_of(message) for message in sent_messages]
    if any(header != headers[0] for header in headers):
        raise CallError(
            f"the sparse tensors of an all_reduce differ: {', '.join(map(_describe, headers))}, "
            "in the order of the ranks; all ranks must give the same dtype, shape and number of "
            "sparse dimensions"
        )
    parts = [_indices_and_values(*each) for each in zip(sent_messages, headers, strict=True)]
    indices, values = (torch.cat(each) for each in zip(*parts, strict=True))
    total = sparse_of(indices.t(), values, headers[0][3:]).coalesce()
    if reduction == (Average, 1.0):
        total = divided(total, len(messages))
    with torch.no_grad():  # a detached tensor would not share its sparse memory
        tensor.copy_(total.to(tensor.device))


def _header_of(message: torch.Tensor) -> list[int]:
    fixed_field_count = 3
    dimensions = int(message[: fixed_field_count * _INDEX_BYTES].clone().view(torch.int64)[-1])
    return (
        message[: (fixed_field_count + dimensions) * _INDEX_BYTES]
        .clone()
        .view(torch.int64)
        .tolist()
    )


def _describe(header: Sequence[int]) -> str:
    code, sparse_dimensions, _, *shape = header
    name = str(_DTYPE_OF_CODE[code]).removeprefix("torch.")
    return f"{name} {shape} with {sparse_dimensions} sparse dimensions"


def _indices_and_values(
    message: torch.Tensor, header: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of a message. The slices are copied, because the memory of an element
    must be aligned."""
    code, sparse_dimensions, _, *shape = header
    dense_shape, dtype = shape[sparse_dimensions:], _DTYPE_OF_CODE[code]
    body = message[len(header) * _INDEX_BYTES :]
    index_bytes = sparse_dimensions * _INDEX_BYTES
    value_bytes = torch.Size(dense_shape).numel() * dtype.itemsize
    count = len(body) // max(index_bytes + value_bytes, 1)
    indices, values = body[: count * index_bytes], body[count * index_bytes :]
    return (
        indices.clone().view(torch.int64).reshape(count, sparse_dimensions),
        values.clone().view(dtype).reshape(count, *dense_shape),
    )
