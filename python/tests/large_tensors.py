"""Calls with element numbers and byte offsets above 2³¹, in a job of two."""

from __future__ import annotations

import torch

import farandole.torch as hvd

LARGE_ROWS = 2**31 + 99
# The checks divide a tensor into pieces of this length, and give all elements of a piece the same
# value. The length is not a multiple of any block size of the engine.
PIECE_ROWS = 100_000_007


def extremes_of_pieces(tensor: torch.Tensor, first_row: int = 0) -> list[tuple[int, int]]:
    """Return the smallest and the largest value of each piece.

    `tensor` is the part of a larger tensor that begins at the row `first_row`.
    """
    head = min(-first_row % PIECE_ROWS, len(tensor))
    parts = [tensor[:head], *tensor[head:].split(PIECE_ROWS)]
    return [(int(part.min()), int(part.max())) for part in parts if len(part)]


class LargeTensorFixture:
    """Fills and compares the tensors of the checks. All these tensors use the same memory."""

    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self.memory = torch.empty(0, dtype=torch.uint8)

    def filled_tensor(self, rows: int) -> torch.Tensor:
        """Return a tensor of bytes. All bytes of a piece have the same value. On rank 0, the first
        piece has the value 1, the second has 2, and so on; on rank 1, the values begin with 4."""
        if len(self.memory) < rows:
            self.memory = torch.empty(rows, dtype=torch.uint8)
        tensor = self.memory[:rows]
        for number, piece in enumerate(tensor.split(PIECE_ROWS)):
            piece.fill_(number + 3 * self.rank + 1)
        return tensor

    def expect_pieces(self, tensor: torch.Tensor, first_row: int, values: list[int]) -> None:
        """Check that the pieces of `tensor` have these values. As in extremes_of_pieces(), `tensor`
        is the part of a larger tensor that begins at the row `first_row`."""
        assert extremes_of_pieces(tensor, first_row) == [(value, value) for value in values]

    def values_of_pieces(self, begin: int, end: int, rank: int) -> list[int]:
        """Return the values that filled_tensor() gives on `rank` to the pieces in the rows from
        begin to end."""
        return [
            number + 3 * rank + 1 for number in range(begin // PIECE_ROWS, -(-end // PIECE_ROWS))
        ]


class LargeTensors(LargeTensorFixture):
    def check_allreduce_in_place(self) -> None:
        tensor = self.filled_tensor(LARGE_ROWS)
        hvd.allreduce_(tensor, op=hvd.Sum)
        self.expect_pieces(
            tensor, 0, [2 * value + 3 for value in self.values_of_pieces(0, LARGE_ROWS, 0)]
        )

    def check_broadcast_in_place(self) -> None:
        tensor = self.filled_tensor(LARGE_ROWS)
        hvd.broadcast_(tensor, 1)
        self.expect_pieces(tensor, 0, self.values_of_pieces(0, LARGE_ROWS, 1))


class LargerTensors(LargeTensorFixture):
    def check_allgather(self) -> None:
        rows = (LARGE_ROWS, 1000)
        result = hvd.allgather(self.filled_tensor(rows[self.rank]))
        assert len(result) == sum(rows)
        self.expect_pieces(result[:LARGE_ROWS], 0, self.values_of_pieces(0, LARGE_ROWS, 0))
        self.expect_pieces(result[LARGE_ROWS:], 0, self.values_of_pieces(0, 1000, 1))

    def check_alltoall(self) -> None:
        """Rank 0 has a small and a large part. First, it keeps the small part and sends the large
        one to rank 1. Then, it keeps the large part and sends the small one, which begins above
        2³¹."""
        for splits in (((17, LARGE_ROWS), (23, 29)), ((LARGE_ROWS, 17), (23, 29))):
            own_splits = splits[self.rank]
            result, received = hvd.alltoall(self.filled_tensor(sum(own_splits)), own_splits)
            sizes = [splits[sender][self.rank] for sender in (0, 1)]
            assert received.tolist() == sizes and len(result) == sum(sizes)
            for sender, part in enumerate(result.split(sizes)):
                first_row = splits[sender][0] if self.rank else 0
                values = self.values_of_pieces(first_row, first_row + sizes[sender], sender)
                self.expect_pieces(part, first_row, values)

    def check_reducescatter(self) -> None:
        """The input has 2 * LARGE_ROWS rows, so that the part of rank 1 begins above 2³¹."""
        result = hvd.reducescatter(self.filled_tensor(2 * LARGE_ROWS), op=hvd.Sum)
        assert len(result) == LARGE_ROWS
        first_row = self.rank * LARGE_ROWS
        values = self.values_of_pieces(first_row, first_row + LARGE_ROWS, 0)
        self.expect_pieces(result, first_row, [2 * value + 3 for value in values])
