"""Train word vectors with sparse gradients. Each step uses only some of the vectors, and the ranks
send only the gradients of these vectors.

horovodrun -np 2 python examples/horovod/sparse_embeddings.py
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import horovod.torch as hvd

WORDS, DIMENSIONS, TOPICS = 20_000, 16, 4
WORDS_IN_TEXT, TEXTS, STEPS = 12, 32, 60


class Classifier(nn.Module):
    """Predict the topic of a text from the mean of its words' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(WORDS, DIMENSIONS, mode="mean", sparse=True)
        self.topics = nn.Linear(DIMENSIONS, TOPICS)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.topics(self.vectors(texts))
        return logits


def texts_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make texts of random topics. The topic of a word is its number modulo TOPICS. Half of a
    text's words are among the 50 most frequent words of the text's topic."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    topics = torch.randint(TOPICS, (TEXTS,), generator=generator)
    words = torch.randint(WORDS // TOPICS, (TEXTS, WORDS_IN_TEXT), generator=generator)
    words[:, ::2] %= 50
    return words * TOPICS + topics[:, None], topics


def train(model: Classifier, distributed: bool) -> float:
    """Train on this rank's texts. If the training is not distributed, train on the texts of all
    ranks. Return the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    ranks = [hvd.rank()] if distributed else range(hvd.size())
    loss = torch.zeros(())
    for step in range(STEPS):
        batches = [texts_of(rank, step) for rank in ranks]
        words, topics = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), topics)
        loss.backward()
        optimizer.step()
    return loss.item()


def count_touched_rows(model: Classifier) -> int:
    """Compare a sparse sum with a dense one. Return the number of rows (words) that the ranks
    together used in the last step."""
    words, topics = texts_of(hvd.rank(), STEPS - 1)
    model.zero_grad()
    F.cross_entropy(model(words), topics).backward()
    gradient = model.vectors.weight.grad
    assert gradient is not None
    finish = hvd.sparse_allreduce_async(gradient, name="by_hand", op=hvd.Sum)
    total = finish().coalesce()
    dense = hvd.allreduce(gradient.to_dense(), op=hvd.Sum, name="dense")
    if not torch.allclose(total.to_dense(), dense, atol=1e-6):
        sys.exit("the sparse sum differs from the dense one")
    return total.indices().shape[1]


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    distributed_model, single_model = Classifier(), Classifier()
    hvd.broadcast_parameters(distributed_model.state_dict(), root_rank=0)
    single_model.load_state_dict(distributed_model.state_dict())
    loss = train(distributed_model, distributed=True)
    train(single_model, distributed=False)
    pairs = zip(distributed_model.parameters(), single_model.parameters(), strict=True)
    difference = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    rows = count_touched_rows(distributed_model)
    if hvd.rank() == 0:
        print(f"loss {loss:.4f} after {STEPS} steps of {hvd.size()} workers")
        print(f"a step touches {rows} of {WORDS} rows")
        print(f"one process with all texts gets the same parameters, within {difference:.1e}")
    if difference > 1e-3 or loss > 1.0:
        sys.exit("the workers have not learned what one process does")


if __name__ == "__main__":
    main()
