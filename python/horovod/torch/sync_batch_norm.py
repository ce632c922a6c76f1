"""Batch normalization over the batches of all ranks."""

from farandole.torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
