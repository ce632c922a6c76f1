"""The base class of the conformance suite. It has a frontend, joins a job, and compares results."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from reference import OPERATIONS, RELATIVE_TOLERANCES, Array, Shape, input_of


class Frontend(Protocol):
    api: Any  # the frontend's module
    dtypes: Sequence[str]  # the dtypes that the engine and the framework have in common
    has_async: bool  # whether it has calls that end in _async
    has_in_place: bool  # whether it has calls that end in _

    def tensor(self, values: Array, dtype: str) -> Any: ...
    def array(self, tensor: Any) -> Array: ...  # floating dtypes become float64
    def dtype(self, tensor: Any) -> str: ...


@dataclass(frozen=True)
class Form:
    """One of the functions by which a frontend offers an operation, such as
    grouped_allreduce_async_()."""

    grouped: bool
    asynchronous: bool
    in_place: bool

    def name(self, operation: str) -> str:
        grouped, asynchronous = "grouped_" * self.grouped, "_async" * self.asynchronous
        return f"{grouped}{operation}{asynchronous}{'_' * self.in_place}"


def forms_of(operation: str, frontend: Frontend) -> list[Form]:
    forms = [Form(*flags) for flags in itertools.product((False, True), repeat=3)]
    in_place = frontend.has_in_place and OPERATIONS[operation].has_in_place
    return [
        form
        for form in forms
        if (in_place or not form.in_place) and (frontend.has_async or not form.asynchronous)
    ]


def needs_async(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Skip a check with a message if the frontend has no asynchronous calls."""

    @functools.wraps(check)
    def run_or_skip(self: Suite) -> None:
        if self.frontend.has_async:
            check(self)
        else:
            print(f"{check.__name__} is skipped: this frontend has no calls with _async")

    return run_or_skip


class Suite:
    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.api = frontend, frontend.api
        self.init()
        self.rank, self.size = self.api.rank(), self.api.size()

    def init(self) -> None:
        """Join the job. If it has three or four workers, also make groups that overlap."""
        size = int(os.environ.get("FARANDOLE_SIZE", "1"))
        group_ranks = {3: [[0, 1], [1, 2], [0, 2]], 4: [[0, 1, 2], [1, 2, 3], [0, 3]]}
        self.groups = [self.api.ProcessSet(ranks) for ranks in group_ranks.get(size, [])]
        self.api.init(process_sets=self.groups)

    def my_groups(self) -> list[Any]:
        """Return the world and the other groups of this rank."""
        return [self.api.global_process_set, *(group for group in self.groups if group.included())]

    def tensor(self, shape: Shape, dtype: str = "float32", seed: int = 0) -> Any:
        return self.frontend.tensor(input_of(self.rank, shape, dtype, seed), dtype)

    def inputs_of_all(self, shape: Shape, dtype: str = "float32", seed: int = 0) -> list[Array]:
        return self.inputs_of_group(self.api.global_process_set, shape, dtype, seed)

    def inputs_of_group(
        self, group: Any, shape: Shape, dtype: str = "float32", seed: int = 0
    ) -> list[Array]:
        return [input_of(rank, shape, dtype, seed) for rank in group.ranks]

    def groups_and_forms(self, operation: str, form_number: int) -> Iterator[tuple[Any, Form]]:
        """Yield pairs of a group and a form: the world with every form, and each other group with
        one form, which depends on `form_number`."""
        forms = forms_of(operation, self.frontend)
        for number, group in enumerate(self.my_groups()):
            for form in (
                forms if number == 0 else [forms[(form_number + group.process_set_id) % len(forms)]]
            ):
                yield group, form

    def run(
        self, operation: str, form: Form, tensors: Sequence[Any], *args: Any, **options: Any
    ) -> list[Any]:
        """Apply the operation to all these tensors, in one batch if the form is grouped, else one
        by one. Return the results."""
        call = getattr(self.api, form.name(operation))
        finish = self.api.synchronize if form.asynchronous else lambda result: result
        if form.grouped:
            results = finish(call(tensors, *args, **options))
            assert isinstance(results, list)
        else:
            results = list(map(finish, [call(tensor, *args, **options) for tensor in tensors]))
        if form.in_place:
            assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))
        return results

    def expect(
        self,
        tensor: Any,
        expected: Array,
        dtype: str,
        is_exact: bool = True,
        absolute_tolerance: float = 0,
    ) -> None:
        actual = self.frontend.array(tensor)
        assert self.frontend.dtype(tensor) == dtype, (self.frontend.dtype(tensor), dtype)
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        expected = expected.astype(actual.dtype)
        if is_exact or dtype not in RELATIVE_TOLERANCES:
            assert np.array_equal(actual, expected), (actual, expected)
        else:
            np.testing.assert_allclose(
                actual, expected, rtol=RELATIVE_TOLERANCES[dtype], atol=absolute_tolerance
            )

    def expect_all(
        self, tensors: Sequence[Any], expected: Sequence[Array], dtype: str, is_exact: bool = True
    ) -> None:
        for tensor, array in zip(tensors, expected, strict=True):
            self.expect(tensor, array, dtype, is_exact)

    def expect_sum_works(self, group: Any = None) -> None:
        group = group or self.api.global_process_set
        result = self.api.allreduce(self.tensor((4,)), op=self.api.Sum, process_set=group)
        self.expect(result, np.sum(self.inputs_of_group(group, (4,)), 0), "float32")

    def expect_error(self, text: str, call: Callable[..., Any], *args: Any, **options: Any) -> str:
        try:
            call(*args, **options)
        except self.api.CallError as error:
            assert isinstance(error, ValueError)
            assert isinstance(error, self.api.FarandoleError)
            assert text in str(error), (text, str(error))
            return str(error)
        raise AssertionError(f"no error with {text!r}")

    def expect_lost(self, text: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except self.api.GroupLostError as error:
            assert text in str(error), (text, str(error))
        else:
            raise AssertionError(f"no error with {text!r}")
