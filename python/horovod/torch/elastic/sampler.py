"""A sampler that knows what has been processed."""

from farandole.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
