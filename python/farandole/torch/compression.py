"""Smaller forms in which tensors travel: less to send, for less precision.

A compressor is a class, or an object, with the two methods of Compressor; programs may bring their
own. What it returns is what the ranks reduce, so all ranks must use the same one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from farandole.errors import CallError


class Compressor:
    """What a call does to a tensor before it is sent, and to the result. To be derived from."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and what decompress() needs to know about the original."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result in the form of the original; `ctx` comes from compress()."""
        raise NotImplementedError


AnyCompressor: TypeAlias = type[Compressor] | Compressor


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor


class _Cast(Compressor):
    """Sends floating-point tensors as another type, and others as they are."""

    travels_as: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        sent = tensor.to(cls.travels_as) if tensor.is_floating_point() else tensor
        return sent, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_Cast):
    """Half the bytes of float32; three decimal digits, and numbers up to 65,504."""

    travels_as = torch.float16


class BF16Compressor(_Cast):
    """Half the bytes of float32 and its range; two decimal digits."""

    travels_as = torch.bfloat16


class Compression:
    """The compressors that there are, for the argument `compression` of calls."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def checked(compression: AnyCompressor) -> AnyCompressor:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise CallError(
            "compression must be Compression.none, .fp16, .bf16 or a Compressor of your own; got "
            f"{compression!r}"
        )
    return compression
