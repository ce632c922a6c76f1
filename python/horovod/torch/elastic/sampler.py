"""A sampler that records which samples were processed."""

from farandole.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
