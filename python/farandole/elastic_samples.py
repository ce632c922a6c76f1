"""Divide the remaining samples of an epoch among the ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from farandole import lifecycle
from farandole.elastic import StateDictHandler


class ElasticSamples:
    """Divide the samples of an epoch among the ranks. After a failure during an epoch, divide the
    samples that are not processed yet among the ranks of the new job.

    The samples of an epoch have an order that depends only on the seed and the epoch. The ranks
    process them in this order, batch by batch. So a single number, `processed_num`, says which
    samples the ranks have processed together.

    All ranks get the same number of samples. If the division has a remainder, some samples are used
    twice.

    Args:
        dataset: Only its length is used.
        shuffle: Whether each epoch has a different order of the samples.
        seed: The seed of the random order. It must be the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: it has its own order of the samples, and no sample is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has processed a batch of this many samples. All ranks must record
        the same batches. `batch_idx` has no effect: batches are processed in their order."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the remaining samples among the ranks of the current job."""
        self.rank, self.num_replicas = lifecycle.rank(), lifecycle.size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        remaining = self.remaining_indices
        positions = range(self.rank, self.total_size, self.num_replicas)
        return iter([remaining[position % len(remaining)] for position in positions])

    def __len__(self) -> int:
        return self.num_samples


class SamplesHandler(StateDictHandler):
    """Handle ElasticSamples: all ranks get rank 0's epoch and its count of processed samples."""

    value: ElasticSamples
