"""Check the arguments that the distributed optimizers of all frontends share."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from farandole import arguments
from farandole.arrays import Array
from farandole.errors import CallError
from farandole.reduce_op import Average, ReduceOp, Sum


def checked_optimizer_op(op: ReduceOp) -> ReduceOp:
    if op not in (Average, Sum):
        raise CallError(
            f"op of an optimizer must be Average or Sum; got {op!r}: for another op, combine the "
            "gradients by allreduce(), and use the optimizer itself"
        )
    return op


def checked_factor(factor: float, op: ReduceOp) -> float:
    if not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise CallError(f"gradient_predivide_factor must be a number above 0; got {factor!r}")
    if factor != 1 and op is not Average:
        raise CallError(f"gradient_predivide_factor is for op Average; got {op.name}")
    return float(factor)


def checked_passes(passes: int) -> int:
    count = arguments.positive_whole_number(passes)
    if count is None:
        raise CallError(f"backward_passes_per_step must be a whole number above 0; got {passes!r}")
    return count


def checked_names(
    named_parameters: Iterable[tuple[str, Array]] | None, parameters: Sequence[Array]
) -> dict[int, str]:
    """Return the names of all parameters in `named_parameters`, by id(), in their order. The
    optimizer's parameters must be among them. The rest may be added to the optimizer later."""
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise CallError(
            "named_parameters must hold (name, parameter) pairs, such as model.named_parameters()"
        )
    counts = Counter(name for name, _ in pairs)
    repeated_names = sorted(name for name, count in counts.items() if count > 1)
    if repeated_names:
        raise CallError(
            f"named_parameters has names that occur twice: {', '.join(repeated_names)}; give each "
            "parameter a name of its own"
        )
    names_by_id = {id(parameter): name for name, parameter in pairs}
    parameters_by_id = {id(parameter): parameter for parameter in parameters}
    unnamed = [
        parameter
        for parameter_id, parameter in parameters_by_id.items()
        if parameter_id not in names_by_id
    ]
    if unnamed:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in unnamed[:5])
        raise CallError(
            f"named_parameters lacks {len(unnamed)} parameters of the optimizer, of shape "
            f"{shapes}; give the names of all"
        )
    return names_by_id


def parameters_by_group(
    groups: int | Sequence[Sequence[Array]] | None,
    num_groups: int,
    parameters: Sequence[Array],
    is_array: Callable[[object], bool],
) -> Sequence[Sequence[Array]] | None:
    """Return a list with the parameters of each group, or None if there are no groups. `num_groups`
    is Horovod's older name of `groups`."""
    if num_groups != 0:
        warnings.warn(
            "num_groups is the old name of groups: use groups", DeprecationWarning, stacklevel=3
        )
        groups = num_groups if groups is None else groups
    if groups is None or groups == 0:
        return None
    if isinstance(groups, int) and groups > 0:
        bounds = [len(parameters) * i // groups for i in range(groups + 1)]
        return [parameters[bounds[i] : bounds[i + 1]] for i in range(groups)]
    group_lists: Any = groups
    are_lists = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) for group in groups
    )
    if not are_lists or not all(is_array(p) for group in group_lists for p in group):
        raise CallError(
            "groups must be a number of groups, from 0 on, or a list of lists of parameters; got "
            f"{groups!r}"
        )
    parameter_ids = [id(parameter) for group in group_lists for parameter in group]
    if len(set(parameter_ids)) < len(parameter_ids):
        raise CallError("groups has a parameter twice; each can be in one group only")
    return group_lists
