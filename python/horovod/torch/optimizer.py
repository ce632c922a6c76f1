"""Optimizers whose gradients are combined over all ranks."""

from farandole.torch import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
