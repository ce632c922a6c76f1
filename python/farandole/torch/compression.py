"""Compressors that send tensors in a smaller dtype: fewer bytes and less precision."""

from __future__ import annotations

import torch

from farandole.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point()

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Send float16: half the bytes of float32, three decimal digits, and numbers up to 65,504."""

    sent_dtype = torch.float16


class BF16Compressor(_Cast):
    """Send bfloat16: half the bytes of float32, two decimal digits, and the range of float32."""

    sent_dtype = torch.bfloat16


class Compression:
    """The built-in compressors, for the argument `compression` of calls."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
