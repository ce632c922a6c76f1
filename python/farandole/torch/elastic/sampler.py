"""Which samples of a data set are this rank's, for torch's DataLoader."""

from __future__ import annotations

from torch.utils.data import Sampler

from farandole.elastic_samples import ElasticSamples


class ElasticSampler(ElasticSamples, Sampler[int]):
    """Divides the samples of an epoch among the ranks. After a failure in the midst of it only
    those that no rank had recorded as processed are divided, among the ranks that there are then.

    All ranks get the same number: some samples come twice if they cannot be shared out evenly. Use
    it with shuffle=False in the DataLoader, call set_epoch() at the *end* of each epoch, and
    record_batch() after each batch.
    """
