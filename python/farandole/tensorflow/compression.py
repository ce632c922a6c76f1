"""Compressors that send tensors in a smaller dtype: fewer bytes and less precision."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: Any) -> bool:
        return bool(tensor.dtype.is_floating)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Send float16: half the bytes of float32, three decimal digits, and numbers up to 65,504."""

    sent_dtype = tf.float16


class BF16Compressor(_Cast):
    """Send bfloat16: half the bytes of float32, two decimal digits, and the range of float32."""

    sent_dtype = tf.bfloat16


class Compression:
    """The built-in compressors, for the argument `compression` of calls."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
