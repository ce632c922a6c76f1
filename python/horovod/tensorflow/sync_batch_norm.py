"""Batch normalization over the batches of all ranks."""

from farandole.keras import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
