"""Compressors that send tensors in a smaller dtype: fewer bytes and less precision."""

from __future__ import annotations

import torch

from farandole.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(Compressor):
    """Send floating-point tensors in a smaller dtype, and all others as they are."""

    sent_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        sent = tensor.to(cls.sent_dtype) if tensor.is_floating_point() else tensor
        return sent, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


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
