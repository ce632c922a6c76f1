"""Checks of every operation in every form, dtype and group, against NumPy."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import reference
from reference import ABSOLUTE_TOLERANCES, OPS, RELATIVE_TOLERANCES, SHAPES, Shape, input_of
from suite import Form, Suite, needs_async

# Each function returns how many rows the rank `rank` gives to an allgather.
ROWS: tuple[Callable[[int], int], ...] = (
    lambda rank: rank,
    lambda rank: 2,
    lambda rank: 3 * (rank == 0),
    lambda rank: 5000 * (1 + rank % 2),
)
# Each function returns how many rows the member `sender` of an alltoall sends to the member
# `receiver`.
SplitFunction = Callable[[int, int], int]
SPLITS: tuple[SplitFunction, ...] = (
    lambda sender, receiver: 1,
    lambda sender, receiver: sender + receiver,
    lambda sender, receiver: 3 * (receiver == 0),
    lambda sender, receiver: 2 * (sender == 1),
    lambda sender, receiver: 0,
    lambda sender, receiver: 3000 + sender,
)
SCALE_FACTORS = ((2.0, 1.0), (1.0, 0.4), (0.5, 3.0), (-1.5, 0.25), (0.0, 1.0))
SCATTERED_SHAPES: tuple[Shape, ...] = ((0, 2), (1,), (7,), (4, 3), (5, 2, 2), (8,), (40_001,))
# For each number of ranks: inputs of an Adasum, and its result, calculated by hand from the paper
# (Maleki et al., 2020). The result of two vectors is (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b.
# With four vectors, the first two and the last two are combined, and then the two results. With
# three vectors, the result of the first two is combined with the third one.
WORKED_ADASUMS: dict[int, list[tuple[list[Any], Any]]] = {
    2: [
        ([3.0, 5.0], 4.0),  # the Adasum of scalars is their average, even if their signs differ
        ([2.0, -1.0], 0.5),
        ([0.0, 7.0], 7.0),
        ([0.0, 0.0], 0.0),
        ([[1.0, 2.0], [-1.0, -2.0]], [0.0, 0.0]),
        ([[1.0, 2.0], [-2.0, 1.0]], [-1.0, 3.0]),  # the Adasum of orthogonal vectors is their sum
        ([[3.0, 4.0], [4.0, 3.0]], [91 / 25, 91 / 25]),
        ([[1.0, 0.0], [1.0, 1.0]], [5 / 4, 3 / 4]),
    ],
    3: [
        ([1.0, 2.0, 6.0], 3.75),
        ([0.0, 0.0, 5.0], 5.0),
        ([[1.0, 2.0], [-1.0, -2.0], [4.0, 1.0]], [4.0, 1.0]),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]], [55 / 68, 33 / 68 + 13 / 8]),
    ],
    4: [
        ([0.0, 4.0, 2.0, 6.0], 4.0),
        ([[2.0, 0.0], [0.0, 1.0], [-2.0, 0.0], [0.0, -1.0]], [0.0, 0.0]),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [2.0, 0.0]], [5 / 68 + 3 / 2, 3 / 68 + 3 / 2]),
    ],
}


class OperationChecks(Suite):
    def reductions(self) -> Iterator[tuple[int, str, str]]:
        """Yield the pairs of a dtype and an op that can be combined, each with a running number."""
        pairs = [
            (dtype, op)
            for dtype in self.frontend.dtypes
            for op in OPS
            if (dtype, op) != ("bool", "Average")
        ]
        for number, pair in enumerate(pairs):
            yield number, *pair

    def floats(self) -> list[str]:
        return [dtype for dtype in self.frontend.dtypes if dtype in RELATIVE_TOLERANCES]

    def check_allreduce_of_every_kind(self) -> None:
        for number, dtype, op in self.reductions():
            for group, form in self.groups_and_forms("allreduce", number):
                tensors = [self.tensor(shape, dtype) for shape in SHAPES]
                results = self.run(
                    "allreduce", form, tensors, op=getattr(self.api, op), process_set=group
                )
                expected = [
                    reference.allreduce(self.inputs_of_group(group, shape, dtype), op, dtype)
                    for shape in SHAPES
                ]
                self.expect_all(results, expected, dtype, is_exact=op != "Average")
                if not form.in_place:
                    own_inputs = [input_of(self.rank, shape, dtype) for shape in SHAPES]
                    self.expect_all(tensors, own_inputs, dtype)

    def check_adasum_of_every_kind(self) -> None:
        for number, dtype in enumerate(self.floats()):
            for group, form in self.groups_and_forms("allreduce", number):
                tensors = [self.tensor(shape, dtype) for shape in SHAPES]
                options = {"prescale_factor": 0.5, "postscale_factor": 3.0} if number % 2 else {}
                results = self.run(
                    "allreduce", form, tensors, op=self.api.Adasum, process_set=group, **options
                )
                for shape, result in zip(SHAPES, results, strict=True):
                    inputs = self.inputs_of_group(group, shape, dtype)
                    scales = (0.5, 3.0) if number % 2 else (1.0, 1.0)
                    expected = reference.allreduce(inputs, "Adasum", dtype, scales)
                    absolute_tolerance = ABSOLUTE_TOLERANCES[dtype]
                    self.expect(
                        result,
                        expected,
                        dtype,
                        is_exact=False,
                        absolute_tolerance=absolute_tolerance,
                    )

    def check_adasum_has_the_same_bits_everywhere(self) -> None:
        noise = np.random.default_rng(self.rank).standard_normal(300_000)
        for dtype in self.floats():
            tensor = self.frontend.tensor(noise, dtype)
            gathered = self.api.allgather(self.api.allreduce(tensor, op=self.api.Adasum))
            results = np.split(self.frontend.array(gathered), self.size)
            for result in results:
                assert np.array_equal(result, results[0])

    def check_adasum_adds_orthogonal_and_averages_equal_vectors(self) -> None:
        own_input = np.zeros(self.size)
        own_input[self.rank] = self.rank + 1
        actual = self.api.allreduce(self.frontend.tensor(own_input, "float32"), op=self.api.Adasum)
        self.expect(actual, np.arange(1.0, self.size + 1), "float32")
        vector = np.array([1.5, -2.0, 0.0])
        for dtype in self.floats():
            actual = self.api.allreduce(self.frontend.tensor(vector, dtype), op=self.api.Adasum)
            self.expect(actual, vector, dtype)

    def check_adasum_of_worked_examples(self) -> None:
        for inputs, expected in WORKED_ADASUMS.get(self.size, []):
            for dtype in self.floats():
                own_input = self.frontend.tensor(np.array(inputs[self.rank]), dtype)
                actual = self.api.allreduce(own_input, op=self.api.Adasum)
                self.expect(actual, np.array(expected), dtype, False, ABSOLUTE_TOLERANCES[dtype])

    def check_adasum_of_ordinary_numbers(self) -> None:
        inputs = [np.random.default_rng(rank).standard_normal(3000) for rank in range(self.size)]
        for dtype in ("float32", "float64"):
            own_input = self.frontend.tensor(inputs[self.rank], dtype)
            actual = self.frontend.array(self.api.allreduce(own_input, op=self.api.Adasum))
            np.testing.assert_allclose(actual, reference.adasum(np.stack(inputs)), 1e-5, 1e-6)

    def check_adasum_rejects_other_dtypes_and_operations(self) -> None:
        adasum = self.api.Adasum
        for dtype in sorted(set(self.frontend.dtypes) - set(RELATIVE_TOLERANCES)):
            text = f"the adasum of {dtype} values is not defined"
            self.expect_error(text, self.api.allreduce, self.tensor((3,), dtype), op=adasum)
        text = "which only allreduce has"
        self.expect_error(text, self.api.reducescatter, self.tensor((3,)), op=adasum)
        self.expect_sum_works()

    def check_reducescatter_of_every_kind(self) -> None:
        for number, dtype, op in self.reductions():
            for group, form in self.groups_and_forms("reducescatter", number):
                results = self.run(
                    "reducescatter",
                    form,
                    [self.tensor(shape, dtype) for shape in SCATTERED_SHAPES],
                    op=getattr(self.api, op),
                    process_set=group,
                )
                expected = [
                    reference.reducescatter(
                        self.inputs_of_group(group, shape, dtype), op, dtype, group.rank()
                    )
                    for shape in SCATTERED_SHAPES
                ]
                self.expect_all(results, expected, dtype, is_exact=op != "Average")

    def check_broadcast_of_every_kind(self) -> None:
        for number, dtype in enumerate(self.frontend.dtypes):
            for group, form in self.groups_and_forms("broadcast", number):
                root = group.ranks[number % group.size()]
                tensors = [self.tensor(shape, dtype) for shape in SHAPES]
                results = self.run("broadcast", form, tensors, root, process_set=group)
                self.expect_all(results, [input_of(root, s, dtype) for s in SHAPES], dtype)

    def check_allgather_of_uneven_parts(self) -> None:
        rows_and_widths = [(rows, width) for rows in ROWS for width in ((), (3,), (2, 2), (0,))]
        for number, dtype in enumerate(self.frontend.dtypes):
            for group, form in self.groups_and_forms("allgather", number):
                tensors = [
                    self.tensor((rows(self.rank), *width), dtype) for rows, width in rows_and_widths
                ]
                results = self.run("allgather", form, tensors, process_set=group)
                expected = [
                    np.concatenate([input_of(r, (rows(r), *width), dtype) for r in group.ranks])
                    for rows, width in rows_and_widths
                ]
                self.expect_all(results, expected, dtype)

    def check_alltoall_of_every_kind(self) -> None:
        for number, dtype in enumerate(self.frontend.dtypes):
            for form_number, splits in enumerate((*SPLITS, None)):
                for group, form in self.groups_and_forms("alltoall", number + form_number):
                    self.expect_alltoall(group, form, dtype, splits, unsent=form_number % 3)

    def expect_alltoall(
        self, group: Any, form: Form, dtype: str, splits: SplitFunction | None, unsent: int
    ) -> None:
        """Check an alltoall. If splits are given, each member sends all of its rows except the last
        `unsent`."""
        members, member = range(group.size()), group.rank()
        lists = [[(splits or SPLITS[0])(s, r) for r in members] for s in members]
        rows = [sum(sender_splits) + unsent * (splits is not None) for sender_splits in lists]
        widths: list[Shape] = [(), (2,)]
        tensors = [self.tensor((rows[member], *width), dtype) for width in widths]
        own_splits = None if splits is None else lists[member]
        results = self.run(
            "alltoall",
            form,
            tensors,
            splits=own_splits and [own_splits] * 2 if form.grouped else own_splits,
            process_set=group,
        )
        for width, result in zip(widths, results, strict=True):
            inputs = [input_of(group.ranks[m], (rows[m], *width), dtype) for m in members]
            expected, received = reference.alltoall(inputs, lists, member)
            pair = form.asynchronous or splits is not None
            self.expect(result[0] if pair else result, expected, dtype)
            if pair:
                self.expect(result[1], np.array(received), "int32")

    def check_splits_of_every_kind(self) -> None:
        """Splits may be a list, a tuple, an array, or a tensor of any integer type."""
        tensor = self.tensor((self.size, 2))
        ones = np.ones(self.size, np.int64)
        kinds = [ones.tolist(), tuple(ones.tolist()), ones]
        kinds += [self.frontend.tensor(ones, dtype) for dtype in ("int64", "int32", "uint8")]
        expected = np.stack([array[self.rank] for array in self.inputs_of_all((self.size, 2))])
        for splits in kinds:
            result, received = self.api.alltoall(tensor, splits=splits)
            self.expect(result, expected, "float32")
            self.expect(received, ones, "int32")

    def check_scales(self) -> None:
        for number, dtype, op in self.reductions():
            scales = SCALE_FACTORS[number % len(SCALE_FACTORS)]
            options = {"prescale_factor": scales[0], "postscale_factor": scales[1]}
            if op == "Product" and dtype not in RELATIVE_TOLERANCES:
                options["prescale_factor"] = 1.0  # the product must fit into the dtype
            scales = (options["prescale_factor"], options["postscale_factor"])
            inputs = self.inputs_of_all((9, 2), dtype)
            for _, form in self.groups_and_forms("allreduce", number):
                tensor = self.tensor((9, 2), dtype)
                results = self.run("allreduce", form, [tensor], op=getattr(self.api, op), **options)
                expected = reference.allreduce(inputs, op, dtype, scales)
                self.expect(results[0], expected, dtype, is_exact=False)
            for _, form in self.groups_and_forms("reducescatter", number):
                tensor = self.tensor((9, 2), dtype)
                results = self.run(
                    "reducescatter", form, [tensor], op=getattr(self.api, op), **options
                )
                expected = reference.reducescatter(inputs, op, dtype, self.rank, scales)
                self.expect(results[0], expected, dtype, is_exact=False)

    def check_ordinary_numbers(self) -> None:
        inputs = [np.random.default_rng(rank).standard_normal(3000) for rank in range(self.size)]
        for dtype in ("float32", "float64"):
            tensor = self.frontend.tensor(inputs[self.rank], dtype)
            actual = self.frontend.array(self.api.allreduce(tensor))
            np.testing.assert_allclose(actual, np.mean(inputs, 0), rtol=1e-5, atol=1e-6)
            actual = self.frontend.array(self.api.reducescatter(tensor))
            expected = np.array_split(np.mean(inputs, 0), self.size)[self.rank]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)

    def check_average_is_the_default(self) -> None:
        tensor = self.frontend.tensor(np.array([self.rank] * self.size), "float64")
        mean = np.array([(self.size - 1) / 2] * self.size)
        self.expect(self.api.allreduce(tensor), mean, "float64")
        self.expect(self.api.allreduce(tensor, average=True), mean, "float64")
        self.expect(self.api.allreduce(tensor, average=False), mean * self.size, "float64")
        self.expect(self.api.reducescatter(tensor), mean[:1], "float64")

    def check_large_tensors(self) -> None:
        api, shape = self.api, (1_000_001,)
        inputs, expected = self.inputs_of_all(shape), np.sum(self.inputs_of_all(shape), 0)
        self.expect(api.allreduce(self.tensor(shape), op=api.Sum), expected, "float32")
        self.expect(
            api.reducescatter(self.tensor(shape), op=api.Sum),
            np.array_split(expected, self.size)[self.rank],
            "float32",
        )
        last_rank = self.size - 1
        self.expect(api.broadcast(self.tensor(shape), last_rank), inputs[last_rank], "float32")
        self.expect(api.allgather(self.tensor(shape)), np.concatenate(inputs), "float32")
        splits = np.full((self.size, self.size), 100_000)
        result, _ = api.alltoall(self.tensor(shape), splits[0])
        self.expect(result, reference.alltoall(inputs, splits.tolist(), self.rank)[0], "float32")

    def check_barrier(self) -> None:
        """Each rank makes a file before it calls barrier(). After the barrier, every rank sees all
        files."""
        path = tempfile.mkdtemp() if self.rank == 0 else None
        folder = Path(self.api.broadcast_object(path, root_rank=0))
        random = np.random.default_rng(self.rank)
        for round_number in range(20):
            for group in self.my_groups():
                time.sleep(random.uniform(0, 0.002))  # the ranks arrive in varying order
                mark = f"{round_number}.{group.process_set_id}"
                (folder / f"{mark}.{self.rank}").touch()
                self.api.barrier(process_set=group)
                arrived_ranks = {
                    rank for rank in group.ranks if (folder / f"{mark}.{rank}").exists()
                }
                assert arrived_ranks == set(group.ranks), (mark, arrived_ranks)
        self.api.barrier()
        if self.rank == 0:
            shutil.rmtree(folder)

    @needs_async
    def check_any_order_of_submission(self) -> None:
        """Each rank submits the calls in a random order of its own. See also random_programs.py."""
        handles = {}
        numbers = list(range(30))
        np.random.default_rng(self.rank).shuffle(numbers)
        for i in numbers:
            tensor = self.tensor((11,), seed=i)
            handles[i] = self.api.allreduce_async(tensor, name=f"sum.{i}", op=self.api.Sum)
        for i in sorted(numbers, key=lambda number: -number):
            expected = np.sum(self.inputs_of_all((11,), seed=i), 0)
            self.expect(self.api.synchronize(handles[i]), expected, "float32")
            assert self.api.poll(handles[i])

    def check_objects(self) -> None:
        api = self.api
        for group in self.my_groups():
            sent_object = {
                "rank": self.rank,
                "large": "x" * (100_000 * self.rank),
                "call": lambda: 7,
            }
            received_objects = api.allgather_object(sent_object, process_set=group)
            assert [received["rank"] for received in received_objects] == group.ranks
            assert [len(received["large"]) for received in received_objects] == [
                100_000 * r for r in group.ranks
            ]
            assert [received["call"]() for received in received_objects] == [7] * group.size()
            root = group.ranks[-1]
            own_object = sent_object if self.rank == root else None
            received_objects = api.broadcast_object(own_object, root, name="it", process_set=group)
            assert received_objects["rank"] == root and received_objects["call"]() == 7
        assert api.broadcast_object(None) is None
        assert api.allgather_object((), name="empty") == [()] * self.size

    def check_objects_that_cannot_be_sent(self) -> None:
        last_rank = self.size - 1
        obj = (i for i in ()) if self.rank == last_rank else 1
        text = f"the object of rank {last_rank} cannot be sent"
        self.expect_error(text, self.api.broadcast_object, obj, last_rank)
        self.expect_error(text, self.api.allgather_object, obj)
        self.expect_sum_works()
