"""Checks of calls that are wrong, or that do not match between the ranks.

All ranks get an error, and the next call works.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from reference import OPERATIONS, Shape
from suite import Suite, forms_of, needs_async

# A call: its operation, shape, dtype and options.
Call = tuple[str, Shape, str, dict[str, Any]]
FLOATS: tuple[Shape, str] = ((4,), "float32")


class MismatchChecks(Suite):
    def check_wrong_calls_are_rejected(self) -> None:
        api, tensor = self.api, self.tensor((2,))
        self.expect_error(f"root rank {self.size}", api.broadcast, tensor, self.size)
        for call in (api.allreduce, api.reducescatter):
            self.expect_error("bool", call, self.tensor((2,), "bool"))
        self.expect_error("average", api.allreduce, tensor, True, op=api.Sum)
        for average in (False, 0, np.False_):
            result = api.allreduce(tensor, average=average)
            self.expect(result, np.sum(self.inputs_of_all((2,)), 0), "float32")
        for call in (api.allgather, api.alltoall, api.reducescatter):
            self.expect_error("reshape(1)", call, self.tensor(()))
        for splits in ([1] * (self.size + 1), [-1] * self.size, [3] * self.size):
            self.expect_error("splits", api.alltoall, tensor, splits)
        if self.size > 1:
            self.expect_error("splits", api.alltoall, self.tensor((self.size + 1,)))
        for factor in (float("nan"), float("inf")):
            self.expect_error("finite", api.allreduce, tensor, prescale_factor=factor)
        self.expect_error("not registered", api.barrier, api.ProcessSet([0]))
        self.expect_error("not registered", api.init, process_sets=[api.ProcessSet([0])])
        self.expect_error("ProcessSet objects", api.init, process_sets=[[0]])
        self.expect_sum_works()

    def check_a_mistake_of_one_rank_is_an_error_on_all(self) -> None:
        """Only the last rank makes a mistake. All ranks get an error that names this rank, and
        later calls still match."""
        api, valid_tensor = self.api, self.tensor((self.size,))
        is_wrong, error_prefix = self.rank == self.size - 1, f"rank {self.size - 1}: "
        own_tensor = self.tensor(()) if is_wrong else valid_tensor
        for _ in range(3):
            for call in (api.allgather, api.alltoall, api.reducescatter):
                assert self.expect_error("reshape(1)", call, own_tensor, name="x").startswith(
                    error_prefix
                )
                assert self.expect_error("reshape(1)", call, own_tensor).startswith(error_prefix)
            splits = [2 * self.size] * self.size if is_wrong else [1] * self.size
            assert self.expect_error("splits", api.alltoall, valid_tensor, splits).startswith(
                error_prefix
            )
            root = self.size + 3 if is_wrong else 0
            assert self.expect_error("root rank", api.broadcast, valid_tensor, root).startswith(
                error_prefix
            )
            scale = float("inf") if is_wrong else 1.0
            for form in forms_of("allreduce", self.frontend):
                text = self.expect_error(
                    "finite",
                    self.run,
                    "allreduce",
                    form,
                    [valid_tensor],
                    name="x",
                    prescale_factor=scale,
                )
                assert text.startswith(error_prefix)
            self.expect_sum_works()

    def check_a_wrong_batch_leaves_its_names_free(self) -> None:
        api, vector, scalar = self.api, self.tensor((2,)), self.tensor(())
        self.expect_error("reshape(1)", api.grouped_allgather, [vector, scalar], name="batch")
        results = api.grouped_allgather([vector, vector], name="batch")  # the names are free again
        self.expect_all(results, [np.concatenate(self.inputs_of_all((2,)))] * 2, "float32")

    def mismatches(self) -> Iterator[tuple[list[str], Call, Call]]:
        """Yield triples: words that the error must contain, the call of the other ranks, and the
        different call of rank 0."""
        for name, operation in OPERATIONS.items():
            for words, valid_arguments, different_arguments in operation.differences(
                self.api, self.size
            ):
                yield words, (name, *valid_arguments), (name, *different_arguments)
        broadcast: Call = ("broadcast", *FLOATS, {"root_rank": 0})
        yield ["allgather", "broadcast"], broadcast, ("allgather", *FLOATS, {})
        options = {"op": self.api.Sum}
        allreduce: Call = ("allreduce", *FLOATS, options)
        yield ["reducescatter", "allreduce"], allreduce, ("reducescatter", *FLOATS, options)

    def make_call(self, call: Call, name: str) -> None:
        operation, shape, dtype, options = call
        getattr(self.api, operation)(self.tensor(shape, dtype), name=name, **options)

    def make_grouped_call(self, call: Call, right: Call, name: str) -> None:
        """Make the grouped form of `call` on three tensors. The second tensor has the shape and
        dtype of `call`; the other two have the shape and dtype of `right`."""
        (operation, *kind, options), (_, *right_kind, _) = call, right
        tensors = [
            self.tensor(*shape_and_dtype) for shape_and_dtype in (right_kind, kind, right_kind)
        ]
        getattr(self.api, f"grouped_{operation}")(tensors, name=name, **options)

    def check_mismatches_are_errors_on_all(self) -> None:
        """Under one name, make matching calls, then different calls, and then matching calls again,
        both as single calls and in batches."""
        if self.size == 1:
            return
        other_ranks = "rank 1" if self.size == 2 else f"ranks 1{'-' if self.size > 3 else ', '}"
        for number, (words, valid_call, different_call) in enumerate(self.mismatches()):
            own_call = different_call if self.rank == 0 else valid_call
            for name, make_call in (
                (f"mismatch.{number}", self.make_call),
                (f"batch.{number}", lambda c, n, r=valid_call: self.make_grouped_call(c, r, n)),
            ):
                make_call(valid_call, name)
                text = self.expect_error(name, make_call, own_call, name)
                for word in (*words, "rank 0", other_ranks.rstrip("-, ")):
                    assert word in text, (word, text)
                make_call(valid_call, name)
                self.expect_sum_works()

    @needs_async
    def check_a_mismatch_does_not_affect_other_calls(self) -> None:
        api = self.api
        invalid_handle = api.allreduce_async(self.tensor((4 + self.rank,)), name="wrong")
        valid_handle = api.allreduce_async(self.tensor((4,)), name="right", op=api.Sum)
        total = np.sum(self.inputs_of_all((4,)), 0)
        tensors = [self.tensor((4,)), self.tensor((4 + self.rank,)), self.tensor((4,))]
        in_place = self.frontend.has_in_place
        start_batch = api.grouped_allreduce_async_ if in_place else api.grouped_allreduce_async
        batch = start_batch(tensors, name="batch", op=api.Sum)
        self.expect(api.synchronize(valid_handle), total, "float32")
        if self.size == 1:
            return
        self.expect_error("`wrong`", api.synchronize, invalid_handle)
        self.expect_error("`batch_2of3`", api.synchronize, batch)
        assert api.poll(invalid_handle) and api.poll(batch)
        assert api.synchronize(invalid_handle) is None and api.synchronize(batch) == [None] * 3
        if in_place:
            self.expect_all(tensors[::2], [total] * 2, "float32")

    @needs_async
    def check_a_name_in_flight_twice(self) -> None:
        if self.size == 1:
            return
        api, tensor = self.api, self.tensor((3,))
        if self.rank == 0:
            handle = api.allreduce_async(tensor, name="twice", op=api.Sum)
            self.expect_error("`twice`", api.allreduce_async, tensor, name="twice", op=api.Sum)
        api.barrier()
        if self.rank != 0:
            handle = api.allreduce_async(tensor, name="twice", op=api.Sum)
        self.expect(api.synchronize(handle), np.sum(self.inputs_of_all((3,)), 0), "float32")
        mean = np.mean(self.inputs_of_all((3,)), 0)
        self.expect(api.allreduce(tensor, name="twice"), mean, "float32", is_exact=False)
