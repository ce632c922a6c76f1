"""The interface of compressors, and the compressor that leaves arrays as they are.

A compressor is a class, or an object, with the two methods of Compressor. A program may pass a
compressor of its own. The ranks reduce the tensors that compress() returns, so all ranks must use
the same compressor.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from farandole.arrays import Array
from farandole.errors import CallError


class Compressor:
    """Convert a tensor before it is sent, and convert the result back. Derive from this class."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the tensor to send, and what decompress() needs to know about the original
        tensor."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Return the result in the form of the original tensor; `ctx` comes from compress()."""
        raise NotImplementedError


AnyCompressor: TypeAlias = type[Compressor] | Compressor


class NoneCompressor(Compressor):
    """Send tensors as they are."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: None) -> Array:
        return tensor


_SENT_ITEM_BYTES = 2  # the bytes of an element of float16 or bfloat16


class CastCompressor(Compressor):
    """Send floating-point tensors in a smaller dtype, and all other tensors unchanged. Each
    frontend derives a class for its own tensors. From that class, it derives one class for each
    dtype."""

    sent_dtype: Any  # float16 or bfloat16

    @staticmethod
    def is_float(tensor: Array) -> bool:
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Array, dtype: Any) -> Array:
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Array) -> tuple[Array, Any]:
        dtype = tensor.dtype
        item_bytes = getattr(dtype, "itemsize", 0) or dtype.size  # TensorFlow calls itemsize `size`
        is_cast = item_bytes > _SENT_ITEM_BYTES and cls.is_float(tensor)
        return cls.cast(tensor, cls.sent_dtype) if is_cast else tensor, dtype

    @classmethod
    def decompress(cls, tensor: Array, ctx: Any) -> Array:
        return cls.cast(tensor, ctx)


def checked_compression(compression: AnyCompressor) -> AnyCompressor:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise CallError(
            "compression must be Compression.none, .fp16, .bf16 or a Compressor of your own; got "
            f"{compression!r}"
        )
    return compression
