from __future__ import annotations

import math

import pytest

from farandole import CallError
from farandole.structure import decode, encode


class Tensor:
    pass


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def test_round_trip() -> None:
    tensors = [Tensor(), Tensor()]
    value = {
        "state": {0: {"step": tensors[0], "mean": tensors[1], "none": None}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "fused": False, "params": [0, 1, 2]}],
        (1, "a"): "text with \"quotes\" and ümläute",
        "empty": [(), [], {}],
        "large": 2**70,
    }  # fmt: skip
    text, found = encode(value, is_tensor)
    assert found == tensors
    assert decode(text, found) == value


def test_floats_that_are_no_numbers() -> None:
    text, _ = encode([math.inf, -math.inf, math.nan], is_tensor)
    inf, minus_inf, nan = decode(text, [])
    assert (inf, minus_inf) == (math.inf, -math.inf)
    assert math.isnan(nan)


def test_dictionaries_that_look_like_marks() -> None:
    value = {"tensor": 0, "tuple": [1], "dict": {"dict": []}}
    text, found = encode(value, is_tensor)
    assert decode(text, found) == value


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(
        CallError, match=r"\['a'\]\[1\] is of the type object, which cannot be sent"
    ):
        encode({"a": [1, object()]}, is_tensor)
