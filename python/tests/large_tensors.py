"""Tensors of more than 2³¹ elements, in a job of two."""

from __future__ import annotations

import torch

import farandole.torch as hvd

ELEMENTS = 2**31 + 99


class LargeTensors:
    def __init__(self) -> None:
        hvd.init()
        # Every element of a piece has the same value, and pieces are no multiple of anything.
        self.tensor = torch.empty(ELEMENTS, dtype=torch.uint8)
        self.pieces = self.tensor.split(100_000_007)

    def fill(self, rank: int) -> None:
        for number, piece in enumerate(self.pieces):
            piece.fill_(number + 3 * rank)

    def expect(self, values: list[int]) -> None:
        found = [(int(piece.min()), int(piece.max())) for piece in self.pieces]
        assert found == [(value, value) for value in values], found

    def check_allreduce_in_place(self) -> None:
        self.fill(hvd.rank())
        hvd.allreduce_(self.tensor, op=hvd.Sum)
        self.expect([2 * number + 3 for number in range(len(self.pieces))])

    def check_broadcast_in_place(self) -> None:
        self.fill(hvd.rank())
        hvd.broadcast_(self.tensor, 1)
        self.expect([number + 3 for number in range(len(self.pieces))])
