"""Compressors that send tensors in a smaller dtype, on every backend of Keras."""

from __future__ import annotations

from typing import Any

import keras

from farandole.compression import CastCompressor, NoneCompressor


class _Cast(CastCompressor):
    @staticmethod
    def is_float(tensor: Any) -> bool:
        return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)))

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class FP16Compressor(_Cast):
    """Send float16: half the bytes of float32, three decimal digits, and numbers up to 65,504."""

    sent_dtype = "float16"


class BF16Compressor(_Cast):
    """Send bfloat16: half the bytes of float32, two decimal digits, and the range of float32."""

    sent_dtype = "bfloat16"


class Compression:
    """The built-in compressors, for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
