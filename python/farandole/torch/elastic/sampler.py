"""Choose the samples of a data set for this rank, for torch's DataLoader."""

from __future__ import annotations

from torch.utils.data import Sampler

from farandole.elastic_samples import ElasticSamples


class ElasticSampler(ElasticSamples, Sampler[int]):
    """Divide the samples of an epoch among the ranks. After a failure during an epoch, divide the
    remaining samples among the ranks of the new job. `processed_num` counts the samples that all
    ranks together have processed, in the order of the epoch.

    All ranks get the same number of samples. If the division has a remainder, some samples are used
    twice. Use the sampler with shuffle=False in the DataLoader, call record_batch() after each
    batch, and call set_epoch() at the *end* of each epoch.
    """
