"""check_parameters() for torch: check that parameters are the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farandole.group import Group, global_process_set
from farandole.torch import tensors as torch_tensors
from farandole.training import parameter_check
from farandole.training.parameter_check import ADVICE


def check_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    name: str | None = None,
    *,
    process_set: Group = global_process_set,
) -> None:
    """Raise CallError on all ranks, with the same text, if their parameters differ.

    The text names the first parameter that differs, and the ranks. The call blocks until all
    members have made it. Each rank reads all bytes of its parameters once. If the parameters are
    equal, the ranks exchange only 32 bytes. Ranks that have called join() take no part.

    Args:
        params: `model.named_parameters()`, `model.state_dict()`, or tensors without names, on any
            device and of any dtype. Tensors are compared by name, so their order does not matter.
            Leave out tensors that differ by design, such as the running statistics of batch
            normalization: state_dict() contains them, named_parameters() does not.
        name: The name of the call. If it is None, the name is `check_parameters`.
        process_set: The group.

    The comparison is bit by bit: 0.0 differs from -0.0, and a NaN equals only a NaN with the same
    bits.
    """
    parameter_check.check(torch_tensors, params, process_set, name, advice=ADVICE)
