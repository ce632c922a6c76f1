"""What every compressor has, and the one that leaves arrays as they are.

A compressor is a class, or an object, with the two methods of Compressor; programs may bring their
own. What it returns is what the ranks reduce, so all ranks must use the same one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from farandole.arrays import Array
from farandole.errors import CallError


class Compressor:
    """What a call does to a tensor before it is sent, and to the result. Derive from it."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the tensor to send, and what decompress() needs to know about the original."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Return the result in the form of the original; `ctx` comes from compress()."""
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


def checked(compression: AnyCompressor) -> AnyCompressor:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise CallError(
            "compression must be Compression.none, .fp16, .bf16 or a Compressor of your own; got "
            f"{compression!r}"
        )
    return compression
