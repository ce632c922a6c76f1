"""Divide the samples of a data set among the ranks, leaving out those that have been processed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from farandole import lifecycle
from farandole.elastic import StateDictHandler
from farandole.objects import allgather_object


class ElasticSamples:
    """Divide the samples of an epoch among the ranks. After a failure during an epoch, divide the
    samples that no rank has recorded as processed among the ranks of the new job.

    All ranks get the same number of samples. If the division has a remainder, some samples are used
    twice.

    Args:
        dataset: Only its length is used.
        shuffle: Whether the samples come in another order in each epoch.
        seed: The seed of the random order. It must be the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: no sample counts as processed, and the samples come in another order."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that this rank has processed its batch number `batch_idx`, counted from 0 since
        the last reset."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of this rank's batch number `batch_idx`, counted from 0."""
        first = batch_idx * batch_size
        return self.indices[first : first + batch_size]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divide the samples that are not processed among the ranks of the current job."""
        self.rank, self.num_replicas = lifecycle.rank(), lifecycle.size()
        self.remaining_indices = [
            index for index in range(len(self.dataset)) if index not in self.processed_indices
        ]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._indices_of_this_rank()

    def _indices_of_this_rank(self) -> list[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        if order:
            order = [order[place % len(order)] for place in range(self.total_size)]
        return order[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class SamplesHandler(StateDictHandler):
    """Handle ElasticSamples: a sample that any rank has processed counts as processed."""

    value: ElasticSamples

    def sync(self) -> None:
        states = allgather_object(self.value.state_dict(), name="elastic.sampler")
        processed = set().union(*(state["processed_indices"] for state in states))
        self.value.load_state_dict({**states[0], "processed_indices": processed})
        self.save()
