"""Combine the gradients of all ranks, for the optimizers and tapes of several frontends."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from farandole import arguments
from farandole.arrays import Array
from farandole.compression import AnyCompressor, NoneCompressor, checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.operations import Allreduce
from farandole.reduce_op import Average, Min, Product, ReduceOp, checked_op
from farandole.training.optimizer_arguments import checked_factor, parameters_by_group
from farandole.training.variables import numbered_names

CALL_NAME = "gradients"  # the calls' name in errors, reports and the timeline
DIFFERENT_KINDS_TEXT = (
    "the ranks have gradients of different variables, or dense and sparse ones of the same: "
    "compute the same gradients on all ranks, and use zeros where a rank has none"
)


class Kind(enum.IntEnum):
    """The gradient that a rank has for a variable."""

    NONE = 0
    DENSE = 1
    SPARSE = 2

    @property
    def description(self) -> str:
        return "none" if self is Kind.NONE else f"a {self.name.lower()} one"


class GradientFunctions(Protocol):
    """What a frontend does with gradients."""

    def combine_if_member(
        self,
        group: Group,
        gradients: Sequence[Array],
        combine: Callable[[], list[Array]],
        keep_own: Callable[[], list[Array]],
    ) -> list[Array]:
        """Return combine() if this rank is a member of the group. Otherwise, return keep_own().
        Each of the two returns one gradient for each of `gradients`. A compiled program may run in
        a later job, and may be unable to ask there whether the rank is a member. Such a program
        gets combine(), whose calls raise an error outside of the group."""

    def with_checked_kinds(
        self,
        gradients: Sequence[Array],
        kinds: Sequence[Kind],
        group: Group,
        variables: Sequence[Any],
    ) -> list[Array]:
        """Check that all members have the same kinds. `kinds` has one kind for each variable.
        Return the gradients in such a form that they are sent only after the check."""

    def reduce(
        self, gradients: Sequence[Array], operation: Allreduce, compression: AnyCompressor
    ) -> list[Array]:
        """Return the reduction of each dense gradient. The gradients are one batch."""

    def reduce_sparse(
        self, gradients: Sequence[Array], operation: Allreduce, compression: AnyCompressor
    ) -> list[Array]:
        """Return the reduction of each sparse gradient. The gradients are one batch."""

    def is_sparse(self, gradient: Array) -> bool: ...

    def to_dense(self, gradient: Array) -> Array:
        """Return a sparse gradient as a dense one."""

    def scaled(self, gradient: Array, factor: Any) -> Array:
        """Return the gradient times a number, or times a scalar of the framework."""

    def overflow_of(self, gradients: Sequence[Array]) -> Array:
        """Return a scalar in float32: 1 if a gradient has an element that is not finite, else 0."""

    def with_overflow(self, gradient: Array, has_overflow: Array) -> Array:
        """Return the gradient. If the boolean scalar `has_overflow` is true, make the gradient
        infinite."""

    def member_count(self, group: Group) -> Any:
        """Return the number of members. A program that may outlive the job gets a scalar that is
        read again in each run."""

    def underlying_variable(self, variable: Any) -> Any:
        """Return the object that stands for this variable: itself, or the one that it wraps."""


class _OverflowVariable:
    """Stands for a variable that does not exist. The gradient of this object says whether a local
    gradient of this rank has an overflow."""

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
        self._sparse_as_dense, self._scales_local_gradients = sparse_as_dense, scale_local_gradients
        self._local_variables: list[Any] = []
        self._local_factor = 1.0

    def add_local_variable(self, variable: Any) -> None:
        """Do not combine the gradient of this variable: this rank uses its own gradient."""
        self._local_variables.append(self._functions.underlying_variable(variable))

    @property
    def has_local_variables(self) -> bool:
        """Whether add_local_variable() was called."""
        return bool(self._local_variables)

    def multiply_by(self, factor: float) -> None:
        """Multiply all gradients, also those of local variables, by this number in addition to all
        other factors."""
        self._local_factor *= factor
        factors = (self._operation.prescale, self._operation.postscale * factor)
        self._operation = Allreduce(self._operation.group, self._operation.op, *factors)

    def combine_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined gradients. A gradient may be None. On a rank outside of the group,
        return the gradients of this rank."""
        present_indices = [i for i, gradient in enumerate(gradients) if gradient is not None]

        def present_results(combine: Callable[..., list[Any]]) -> list[Any]:
            results = combine(gradients, variables)
            return [results[i] for i in present_indices]

        combined_results = self._functions.combine_if_member(
            self._operation.group,
            [gradients[i] for i in present_indices],
            lambda: present_results(self._combine),
            lambda: present_results(self._keep_own),
        )
        results: list[Any] = [None] * len(gradients)
        for i, result in zip(present_indices, combined_results, strict=True):
            results[i] = result
        return results

    def combine_gradients_and_overflow(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Do the same as combine_gradients(). But if a local gradient of any rank has an overflow,
        return a gradient with an overflow on all ranks, because all ranks must skip the same
        updates."""
        functions = self._functions
        local_gradients = [
            gradient
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None and self.is_local_variable(variable)
        ]
        overflow = functions.overflow_of(local_gradients)
        # Min and Product must return 0 if any rank has an overflow.
        is_inverted = self._operation.op in (Min, Product)
        *results, flag = self.combine_gradients(
            [*gradients, 1 - overflow if is_inverted else overflow],
            [*variables, _OverflowVariable],
        )
        has_overflow = flag <= 0 if is_inverted else flag > 0
        present_indices = [i for i, gradient in enumerate(results) if gradient is not None]
        if present_indices:
            # Mark only one gradient, because loss scaling looks at all of them. Prefer a dense
            # gradient that is sent: a sparse gradient may have no rows, and a local gradient may
            # have no elements on this rank.
            overflow_index = min(
                present_indices,
                key=lambda i: (
                    self.is_local_variable(variables[i]),
                    functions.is_sparse(results[i]),
                ),
            )
            results[overflow_index] = functions.with_overflow(results[overflow_index], has_overflow)
        return results

    def _keep_own(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        functions, results = self._functions, list(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            is_sent = not self.is_local_variable(variables[i])
            if self._sparse_as_dense and is_sent and functions.is_sparse(gradient):
                results[i] = functions.to_dense(gradient)
            if self._local_factor != 1:
                results[i] = functions.scaled(results[i], self._local_factor)
        return results

    def _combine(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Combine the gradients.

        The dense gradients are one batch of calls, and the sparse ones another one. Gradients of
        local variables are not sent; they are divided by the number of members if
        scale_local_gradients is True.
        """
        functions = self._functions
        results = list(gradients)
        present_indices = [i for i, gradient in enumerate(results) if gradient is not None]
        local_indices = [i for i in present_indices if self.is_local_variable(variables[i])]
        sent_indices = [i for i in present_indices if i not in local_indices]
        sparse_indices = [i for i in sent_indices if functions.is_sparse(results[i])]
        if self._sparse_as_dense:
            for i in sparse_indices:
                results[i] = functions.to_dense(results[i])
            sparse_indices = []
        dense_indices = [i for i in sent_indices if i not in sparse_indices]
        kinds = [Kind.NONE] * len(results)
        for indices, kind in ((dense_indices, Kind.DENSE), (sparse_indices, Kind.SPARSE)):
            for i in indices:
                kinds[i] = kind
        checked_gradients = functions.with_checked_kinds(
            [results[i] for i in sent_indices], kinds, self._operation.group, variables
        )
        for i, gradient in zip(sent_indices, checked_gradients, strict=True):
            results[i] = gradient
        for indices, reduce in (
            (dense_indices, functions.reduce),
            (sparse_indices, functions.reduce_sparse),
        ):
            if not indices:
                continue
            batch = reduce([results[i] for i in indices], self._operation, self._compression)
            for i, result in zip(indices, batch, strict=True):
                results[i] = result
        if local_indices and self._scales_local_gradients:
            factor = self._local_factor / functions.member_count(self._operation.group)
        else:
            factor = self._local_factor
        if isinstance(factor, float) and factor == 1:
            return results
        for i in local_indices:
            results[i] = functions.scaled(results[i], factor)
        return results

    def is_local_variable(self, variable: Any) -> bool:
        """Return whether add_local_variable() was called for this variable."""
        return any(
            self._functions.underlying_variable(variable) is local_variable
            for local_variable in self._local_variables
        )


def check_kinds(kinds_by_rank: Mapping[int, Sequence[int]], variables: Sequence[Any]) -> None:
    """Raise a CallError if the ranks have different kinds of gradients."""
    first_kinds, *other_kinds = kinds_by_rank.values()
    if all(kinds == first_kinds for kinds in other_kinds):
        return
    names = numbered_names(variables)
    for i in range(max(map(len, kinds_by_rank.values()))):
        kind_by_rank = {
            rank: Kind(kinds[i]) if i < len(kinds) else Kind.NONE
            for rank, kinds in kinds_by_rank.items()
        }
        if len(set(kind_by_rank.values())) > 1:
            name = names[i] if i < len(names) else str(i)
            text = ", ".join(
                f"rank {rank} has {kind.description}" for rank, kind in kind_by_rank.items()
            )
            raise CallError(f"{DIFFERENT_KINDS_TEXT}; of variable {name}, {text}")


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
