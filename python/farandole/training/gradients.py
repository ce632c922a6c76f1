"""Combine the gradients of all ranks, for the optimizers and tapes of several frontends."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from farandole import arguments
from farandole.arrays import Array
from farandole.compression import AnyCompressor, NoneCompressor
from farandole.compression import checked as checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.operations import Allreduce
from farandole.reduce_op import Average, ReduceOp
from farandole.reduce_op import checked as checked_op
from farandole.training.optimizer_arguments import checked_factor, parameters_by_group
from farandole.training.variables import numbered_names

NAME = "gradients"  # of the calls, in errors, reports and the timeline
DIFFERENT_KINDS = (
    "the ranks have gradients of different variables, or dense and sparse ones of the same: "
    "compute the same gradients on all ranks, and use zeros where a rank has none"
)


class Kind(enum.IntEnum):
    """The gradient that a rank has for a variable."""

    NONE = 0
    DENSE = 1
    SPARSE = 2

    @property
    def words(self) -> str:
        return "none" if self is Kind.NONE else f"a {self.name.lower()} one"


class GradientFunctions(Protocol):
    """What a frontend does with gradients."""

    def if_member(
        self,
        group: Group,
        gradients: Sequence[Array],
        together: Callable[[], list[Array]],
        alone: Callable[[], list[Array]],
    ) -> list[Array]:
        """Return together() if this rank is a member of the group, and alone() otherwise. Both
        return as many gradients as there are in `gradients`. A program that is compiled now and
        cannot ask again when it runs in a later job gets together(), whose calls raise an error
        outside of the group."""

    def same_on_all(
        self,
        gradients: Sequence[Array],
        kinds: Sequence[Kind],
        group: Group,
        variables: Sequence[Any],
    ) -> list[Array]:
        """Check that all members have the same kinds, one for each variable. Return the gradients;
        none of them is sent before the check."""

    def reduce(
        self, gradients: Sequence[Array], operation: Allreduce, compression: AnyCompressor
    ) -> list[Array]:
        """Return the reduction of each dense gradient. The gradients are one batch."""

    def reduce_sparse(
        self, gradients: Sequence[Array], operation: Allreduce, compression: AnyCompressor
    ) -> list[Array]:
        """Return the reduction of each sparse gradient. The gradients are one batch."""

    def is_sparse(self, gradient: Array) -> bool: ...

    def dense(self, gradient: Array) -> Array:
        """Return a sparse gradient as a dense one."""

    def scaled(self, gradient: Array, factor: Any) -> Array:
        """Return the gradient times a number, or times a scalar of the framework."""

    def overflow(self, gradients: Sequence[Array]) -> Array:
        """Return a scalar in float32: 1 if a gradient has an element that is not finite, else 0."""

    def with_overflow(self, gradient: Array, overflow: Array) -> Array:
        """Return the gradient if the scalar `overflow` is 0. Otherwise, make it infinite."""

    def members(self, group: Group) -> Any:
        """Return the number of members. A program that may outlive the job gets a scalar that is
        read again in each run."""

    def variable_of(self, variable: Any) -> Any:
        """Return the object that stands for this variable: itself, or the one that it wraps."""


class _Overflow:
    """Stands for a variable. Its gradient says whether a local gradient has an overflow."""

    name = "overflow of local variables"


class GradientCombiner:
    """Combines gradients, with the arguments that optimizers and tapes share.

    Raises:
        CallError: An argument is wrong.
    """

    # size waiver: Horovod's arguments
    def __init__(
        self,
        functions: GradientFunctions,
        op: ReduceOp = Average,
        compression: AnyCompressor = NoneCompressor,
        process_set: Group = global_process_set,
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        scale_local_gradients: bool = True,
        num_groups: int = 0,
        groups: Any = None,
        is_variable: Callable[[object], bool] = lambda value: hasattr(value, "assign"),
    ) -> None:
        self._functions = functions
        op = checked_op(op)
        self._compression = checked_compression(compression)
        arguments.group_number(process_set)
        factor = checked_factor(gradient_predivide_factor, op)
        # All gradients are sent as one batch, so the groups are only checked.
        parameters_by_group(groups, num_groups, [], is_variable)
        self._operation = Allreduce(process_set, op, 1 / factor, factor)
        self._sparse_as_dense, self._scales_local = sparse_as_dense, scale_local_gradients
        self._local: list[Any] = []
        self._local_factor = 1.0

    def add_local(self, variable: Any) -> None:
        """Leave the gradient of this variable as it is on this rank."""
        self._local.append(self._functions.variable_of(variable))

    @property
    def has_local(self) -> bool:
        """Whether add_local() was called."""
        return bool(self._local)

    def multiply_by(self, factor: float) -> None:
        """Multiply all gradients by this number, too, even those of local variables."""
        self._local_factor *= factor
        scales = (self._operation.prescale, self._operation.postscale * factor)
        self._operation = Allreduce(self._operation.group, self._operation.op, *scales)

    def combined(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined gradients. A gradient may be None. On a rank outside of the group,
        return the gradients of this rank."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]

        def chosen(combine: Callable[..., list[Any]]) -> list[Any]:
            results = combine(gradients, variables)
            return [results[i] for i in present]

        found = self._functions.if_member(
            self._operation.group,
            [gradients[i] for i in present],
            lambda: chosen(self._together),
            lambda: chosen(self._alone),
        )
        results: list[Any] = [None] * len(gradients)
        for i, result in zip(present, found, strict=True):
            results[i] = result
        return results

    def combined_with_overflow(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Do the same as combined(). If a local gradient of any rank has an overflow, give all
        ranks a gradient with one, because all ranks must skip the same updates."""
        functions = self._functions
        local = [
            gradient
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None and self.is_local(variable)
        ]
        *found, overflow = self.combined(
            [*gradients, functions.overflow(local)], [*variables, _Overflow]
        )
        present = [i for i, gradient in enumerate(found) if gradient is not None]
        if present:
            # One is enough, because loss scaling looks at all of them. A sparse gradient may have
            # no rows, and a local one may have no elements on this rank.
            chosen = min(
                present, key=lambda i: (self.is_local(variables[i]), functions.is_sparse(found[i]))
            )
            found[chosen] = functions.with_overflow(found[chosen], overflow)
        return found

    def _alone(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        functions, results = self._functions, list(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            is_sent = not self.is_local(variables[i])
            if self._sparse_as_dense and is_sent and functions.is_sparse(gradient):
                results[i] = functions.dense(gradient)
            if self._local_factor != 1:
                results[i] = functions.scaled(results[i], self._local_factor)
        return results

    def _together(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Combine the gradients.

        The dense gradients are one batch of calls, and the sparse ones another one. Gradients of
        local variables are not sent; they are divided by the number of members if
        scale_local_gradients is True.
        """
        functions = self._functions
        results = list(gradients)
        present = [i for i, gradient in enumerate(results) if gradient is not None]
        local = [i for i in present if self.is_local(variables[i])]
        sent = [i for i in present if i not in local]
        sparse = [i for i in sent if functions.is_sparse(results[i])]
        if self._sparse_as_dense:
            for i in sparse:
                results[i] = functions.dense(results[i])
            sparse = []
        dense = [i for i in sent if i not in sparse]
        kinds = [Kind.NONE] * len(results)
        for places, kind in ((dense, Kind.DENSE), (sparse, Kind.SPARSE)):
            for i in places:
                kinds[i] = kind
        checked = functions.same_on_all(
            [results[i] for i in sent], kinds, self._operation.group, variables
        )
        for i, gradient in zip(sent, checked, strict=True):
            results[i] = gradient
        for places, reduce in ((dense, functions.reduce), (sparse, functions.reduce_sparse)):
            if not places:
                continue
            batch = reduce([results[i] for i in places], self._operation, self._compression)
            for i, result in zip(places, batch, strict=True):
                results[i] = result
        if local and self._scales_local:
            factor = self._local_factor / functions.members(self._operation.group)
        else:
            factor = self._local_factor
        if isinstance(factor, float) and factor == 1:
            return results
        for i in local:
            results[i] = functions.scaled(results[i], factor)
        return results

    def is_local(self, variable: Any) -> bool:
        """Return whether add_local() was called for this variable."""
        return any(self._functions.variable_of(variable) is other for other in self._local)


def check_kinds(kinds_by_rank: Mapping[int, Sequence[int]], variables: Sequence[Any]) -> None:
    """Raise a CallError if the ranks have different kinds of gradients."""
    first, *others = kinds_by_rank.values()
    if all(kinds == first for kinds in others):
        return
    names = numbered_names(variables)
    for i in range(max(map(len, kinds_by_rank.values()))):
        found = {
            rank: Kind(kinds[i]) if i < len(kinds) else Kind.NONE
            for rank, kinds in kinds_by_rank.items()
        }
        if len(set(found.values())) > 1:
            name = names[i] if i < len(names) else str(i)
            text = ", ".join(f"rank {rank} has {kind.words}" for rank, kind in found.items())
            raise CallError(f"{DIFFERENT_KINDS}; of variable {name}, {text}")


def variables_of_layers(layers: Any) -> list[Any]:
    """Return the trainable variables of a layer or of several layers."""
    if layers is None:
        return []
    variables = []
    for layer in layers if isinstance(layers, Iterable) else [layers]:
        if not hasattr(layer, "trainable_variables"):
            raise CallError(f"local_layers must be a layer or a list of layers; got {layer!r}")
        if not getattr(layer, "built", True):
            raise CallError(
                f"the layer {layer!r} of local_layers is not built, so its variables do not exist "
                "yet: build the model first"
            )
        variables += layer.trainable_variables
    return variables
