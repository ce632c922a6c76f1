"""The compressors of the framework that Keras uses."""

from __future__ import annotations

from typing import Any

from farandole.compression import Compressor, NoneCompressor
from farandole.keras.backend import frontend


class _Compression(type):
    @property
    def none(cls) -> type[NoneCompressor]:
        return NoneCompressor

    @property
    def fp16(cls) -> type[Compressor]:
        compressor: Any = frontend().Compression.fp16
        return compressor

    @property
    def bf16(cls) -> type[Compressor]:
        compressor: Any = frontend().Compression.bf16
        return compressor


class Compression(metaclass=_Compression):
    """The built-in compressors, for the argument `compression`: none, fp16 and bf16."""
