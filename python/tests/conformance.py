"""What every frontend must do alike, checked with NumPy as the reference.

A frontend inherits Conformance and says in a Frontend how to make and read its tensors. The checks
run on all workers of a job at once. Inputs are a function of the rank, so that every worker knows
those of all; they are small whole numbers, so that sums are exact in every dtype.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from farandole import core

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = tuple(core.dtypes)
UNSIGNED = ("bool", "uint8", "uint16")
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (40_000,))
EPSILON = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-7, "float64": 1e-15}


class Frontend(Protocol):
    api: Any  # the module

    def tensor(self, values: Array, dtype: str) -> Any: ...
    def array(self, tensor: Any) -> Array: ...  # float64 for floating dtypes
    def dtype(self, tensor: Any) -> str: ...


def values(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    low, high = (0 if dtype in UNSIGNED else -3), (2 if dtype == "bool" else 4)
    return np.random.default_rng((seed, rank)).integers(low, high, shape)


def reduced(op: str, inputs: list[Array], dtype: str) -> Array:
    stack = np.stack(inputs)
    if dtype == "bool":
        return stack.any(0) if op in ("Sum", "Max") else stack.all(0)
    if op == "Average":
        mean = stack.sum(0) / len(inputs)
        return mean if dtype in EPSILON else np.trunc(mean)
    return {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op](stack, axis=0)


class Conformance:
    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.api = frontend, frontend.api
        self.init()
        self.rank, self.size = self.api.rank(), self.api.size()

    def init(self) -> None:
        """With overlapping groups, if the job has three workers or more."""
        size = int(os.environ.get("FARANDOLE_SIZE", "1"))
        lists = {3: [[0, 1], [1, 2], [0, 2]], 4: [[0, 1, 2], [1, 2, 3], [0, 3]]}
        self.groups = [self.api.ProcessSet(ranks) for ranks in lists.get(size, [])]
        self.api.init(process_sets=self.groups)

    def tensor(self, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
        return self.frontend.tensor(values(self.rank, shape, dtype, seed), dtype)

    def of_all(self, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> list[Array]:
        return [values(rank, shape, dtype, seed) for rank in range(self.size)]

    def expect(self, tensor: Any, wanted: Array, dtype: str, exact: bool = True) -> None:
        found = self.frontend.array(tensor)
        assert self.frontend.dtype(tensor) == dtype, (self.frontend.dtype(tensor), dtype)
        assert found.shape == wanted.shape, (found.shape, wanted.shape)
        wanted = wanted.astype(found.dtype)
        if exact or dtype not in EPSILON:
            assert np.array_equal(found, wanted), (found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=EPSILON[dtype], atol=0)

    def expect_sum_works(self) -> None:
        result = self.api.allreduce(self.tensor((4,)), op=self.api.Sum)
        self.expect(result, sum(self.of_all((4,))), "float32")

    def cases(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for dtype in DTYPES:
            for op in ("Sum", "Average", "Min", "Max", "Product"):
                if (dtype, op) != ("bool", "Average"):
                    yield from ((dtype, op, shape) for shape in SHAPES)

    # The checks

    def check_allreduce_of_every_kind(self) -> None:
        for dtype, op, shape in self.cases():
            result = self.api.allreduce(self.tensor(shape, dtype), op=getattr(self.api, op))
            wanted = reduced(op, self.of_all(shape, dtype), dtype)
            self.expect(result, wanted, dtype, exact=op != "Average")

    def check_allreduce_in_place(self) -> None:
        for dtype, op, shape in self.cases():
            tensor = self.tensor(shape, dtype)
            result = self.api.allreduce_(tensor, op=getattr(self.api, op))
            assert result is tensor
            wanted = reduced(op, self.of_all(shape, dtype), dtype)
            self.expect(tensor, wanted, dtype, exact=op != "Average")

    def check_allreduce_leaves_its_input_alone(self) -> None:
        tensor = self.tensor((50,))
        self.api.allreduce(tensor, op=self.api.Sum)
        self.expect(tensor, values(self.rank, (50,), "float32"), "float32")

    def check_allreduce_of_ordinary_numbers(self) -> None:
        inputs = [np.random.default_rng(rank).standard_normal(3000) for rank in range(self.size)]
        for dtype in ("float32", "float64"):
            result = self.api.allreduce(self.frontend.tensor(inputs[self.rank], dtype))
            found = self.frontend.array(result)
            np.testing.assert_allclose(found, np.mean(inputs, 0), rtol=1e-5, atol=1e-6)

    def check_average_is_the_default(self) -> None:
        one = self.frontend.tensor(np.array([self.rank]), "float64")
        mean = np.array([(self.size - 1) / 2])
        self.expect(self.api.allreduce(one), mean, "float64")
        self.expect(self.api.allreduce(one, average=False), mean * self.size, "float64")

    def check_large_tensors(self) -> None:
        shape = (1_000_001,)
        result = self.api.allreduce(self.tensor(shape), op=self.api.Sum)
        self.expect(result, sum(self.of_all(shape)), "float32")
        self.expect(
            self.api.broadcast(self.tensor(shape), self.size - 1),
            values(self.size - 1, shape, "float32"),
            "float32",
        )
        self.expect(
            self.api.allgather(self.tensor(shape)), np.concatenate(self.of_all(shape)), "float32"
        )

    def check_broadcast(self) -> None:
        for dtype in DTYPES:
            for number, shape in enumerate(SHAPES):
                root = number % self.size
                wanted = values(root, shape, dtype)
                self.expect(self.api.broadcast(self.tensor(shape, dtype), root), wanted, dtype)
                tensor = self.tensor(shape, dtype)
                assert self.api.broadcast_(tensor, root) is tensor
                self.expect(tensor, wanted, dtype)

    def check_allgather_of_uneven_parts(self) -> None:
        for dtype in DTYPES:
            for width in ((), (3,), (2, 2)):
                for rows in (lambda rank: rank, lambda rank: 2, lambda rank: 3 * (rank == 0)):
                    result = self.api.allgather(self.tensor((rows(self.rank), *width), dtype))
                    parts = [values(r, (rows(r), *width), dtype) for r in range(self.size)]
                    self.expect(result, np.concatenate(parts), dtype)

    def check_barrier(self) -> None:
        for _ in range(20):
            self.api.barrier()

    def check_any_order_of_submission(self) -> None:
        api, shape = self.api, (11,)
        starts: list[Callable[[int], Any]] = [
            lambda i: api.allreduce_async(self.tensor(shape, seed=i), name=f"sum.{i}", op=api.Sum),
            lambda i: api.allreduce_async_(self.tensor(shape, seed=i), name=f"max.{i}", op=api.Max),
            lambda i: api.broadcast_async(
                self.tensor(shape, seed=i), i % self.size, name=f"copy.{i}"
            ),
            lambda i: api.allgather_async(self.tensor(shape, seed=i), name=f"all.{i}"),
        ]
        wanted: list[Callable[[int], Array]] = [
            lambda i: np.sum(self.of_all(shape, seed=i), 0),
            lambda i: np.max(self.of_all(shape, seed=i), 0),
            lambda i: self.of_all(shape, seed=i)[i % self.size],
            lambda i: np.concatenate(self.of_all(shape, seed=i)),
        ]
        for round_ in range(5):
            numbers = list(range(60))
            random.Random(100 * round_ + self.rank).shuffle(numbers)
            handles = [(i, starts[i % 4](i)) for i in numbers]
            random.Random(self.rank).shuffle(handles)
            for i, handle in handles:
                self.expect(api.synchronize(handle), wanted[i % 4](i), "float32")
                assert api.poll(handle)

    def check_overlapping_groups(self) -> None:
        for round_ in range(20):
            mine = [group for group in self.groups if group.included()]
            turn = (self.rank + round_) % max(1, len(mine))
            handles = []
            for group in mine[turn:] + mine[:turn]:
                tensor, name = self.tensor((9,), seed=round_), f"in.{group.process_set_id}"
                total = self.api.allreduce_async(
                    tensor, name=name, op=self.api.Sum, process_set=group
                )
                parts = self.api.allgather_async(tensor, process_set=group)
                copy = self.api.broadcast_async(tensor, group.ranks[-1], process_set=group)
                handles.append((group, total, parts, copy))
            for group, total, parts, copy in reversed(handles):
                inputs = [values(rank, (9,), "float32", round_) for rank in group.ranks]
                self.expect(self.api.synchronize(total), np.sum(inputs, 0), "float32")
                self.expect(self.api.synchronize(parts), np.concatenate(inputs), "float32")
                self.expect(self.api.synchronize(copy), inputs[-1], "float32")
            for group in mine:
                self.api.barrier(process_set=group)

    def check_places_in_groups(self) -> None:
        assert self.api.global_process_set.process_set_id == 0
        assert self.api.global_process_set.size() == self.size
        for number, group in enumerate(self.groups):
            assert group.process_set_id == number + 1
            assert group.included() == (self.rank in group.ranks)
            if group.included():
                assert group.ranks[group.rank()] == self.rank
                continue
            self.expect_error("not a member", group.rank)
            self.expect_error(
                "not a member", self.api.allreduce, self.tensor((2,)), process_set=group
            )

    def check_init_again(self) -> None:
        """With other objects for the same groups."""
        again = [self.api.ProcessSet(group.ranks) for group in self.groups]
        for _ in range(2):
            self.api.init(process_sets=again)
        for group, same in zip(self.groups, again, strict=True):
            assert same.process_set_id == group.process_set_id
            if same.included():
                self.api.barrier(process_set=same)

    def check_several_threads(self) -> None:
        errors: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for seed in range(20):
                    result = self.api.allreduce(
                        self.tensor((30,), seed=seed), name=name, op=self.api.Sum
                    )
                    self.expect(result, np.sum(self.of_all((30,), seed=seed), 0), "float32")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(f"thread.{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

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

    def check_wrong_calls(self) -> None:
        tensor = self.tensor((2,))
        self.expect_error(f"root rank {self.size}", self.api.broadcast, tensor, self.size)
        self.expect_error("bool", self.api.allreduce, self.tensor((2,), "bool"))
        self.expect_error("average", self.api.allreduce, tensor, True, op=self.api.Sum)
        self.expect_error("dimension", self.api.allgather, self.tensor(()))
        self.expect_error("not registered", self.api.barrier, self.api.ProcessSet([0]))
        self.expect_error("not registered", self.api.init, process_sets=[self.api.ProcessSet([0])])
        self.expect_error("not [0]", self.api.init, process_sets=[[0]])
        self.expect_sum_works()

    def check_mismatches_are_told_to_all(self) -> None:
        if self.size == 1:
            return
        api, first = self.api, self.rank == 0
        plain, other = self.tensor((4,)), self.tensor((4,), "float64" if first else "float32")
        calls: list[tuple[str, list[str], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
            ("d", ["float64", "float32"], api.allreduce, (other,), {}),
            ("s", ["[4]", "[5]"], api.allreduce, (self.tensor((4 + first,)),), {}),
            ("o", ["sum", "max"], api.allreduce, (plain,), {"op": api.Sum if first else api.Max}),
            ("r", ["root rank 0", "root rank 1"], api.broadcast, (plain, int(first)), {}),
            ("g", ["[*, 2]", "[*, 3]"], api.allgather, (self.tensor((4, 2 + first)),), {}),
        ]
        for name, words, call, arguments, options in calls:
            text = self.expect_error(name, call, *arguments, name=f"wrong.{name}", **options)
            for word in (*words, "rank 0", "rank 1" if self.size == 2 else "ranks 1"):
                assert word in text, (word, text)
            self.expect_sum_works()

    def check_a_mismatch_spares_others(self) -> None:
        wrong = self.api.allreduce_async(self.tensor((4 + self.rank,)), name="wrong")
        right = self.api.allreduce_async(self.tensor((4,)), name="right", op=self.api.Sum)
        self.expect(self.api.synchronize(right), np.sum(self.of_all((4,)), 0), "float32")
        if self.size > 1:
            self.expect_error("`wrong`", self.api.synchronize, wrong)
            self.expect_error("`wrong`", self.api.synchronize, wrong)

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
        self.expect(api.synchronize(handle), np.sum(self.of_all((3,)), 0), "float32")
        self.expect(api.allreduce(tensor, name="twice"), np.mean(self.of_all((3,)), 0),
                    "float32", exact=False)  # fmt: skip

    def check_an_interrupted_wait(self) -> None:
        """The exception of a signal handler ends the wait of rank 0; the call goes on."""

        def interrupt(*_: object) -> None:
            raise InterruptedError

        if self.size == 1:
            return
        api, wanted = self.api, np.sum(self.of_all((3,)), 0)
        if self.rank == 0:
            handle = api.allreduce_async(self.tensor((3,)), name="late", op=api.Sum)
            dropped = api.allreduce_async(self.tensor((3,)), name="dropped", op=api.Sum)
            old = signal.signal(signal.SIGALRM, interrupt)
            for each in (handle, dropped):
                signal.setitimer(signal.ITIMER_REAL, 0.15)
                try:
                    api.synchronize(each)
                except InterruptedError:
                    assert not api.poll(each)
                else:
                    raise AssertionError("the wait was not interrupted")
            signal.signal(signal.SIGALRM, old)
            del dropped, each
        api.barrier()
        if self.rank != 0:
            api.allreduce_async(self.tensor((3,)), name="dropped")
            handle = api.allreduce_async(self.tensor((3,)), name="late", op=api.Sum)
        self.expect(api.synchronize(handle), wanted, "float32")

    def check_dropped_handles(self) -> None:
        for seed in range(50):
            self.api.allreduce_async(self.tensor((1000,), seed=seed))
        self.expect_sum_works()

    def check_a_forked_child_is_told(self) -> None:
        reader, writer = os.pipe()
        tensor, handle = self.tensor((2,)), self.api.allreduce_async(self.tensor((3,)))
        child = os.fork()
        if child == 0:
            for call in (
                lambda: self.api.allreduce(tensor),
                lambda: self.api.synchronize(handle),
                self.api.barrier,
            ):
                try:
                    call()
                except self.api.FarandoleError as error:
                    os.write(writer, f"{error}\n".encode())
            self.api.shutdown()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            lines = pipe.read().splitlines()
        assert os.waitpid(child, 0)[1] == 0
        assert len(lines) == 3, lines
        assert all("called in a forked child" in line for line in lines), lines
        self.api.synchronize(handle)
        self.expect_sum_works()

    def check_places(self) -> None:
        assert (self.api.local_rank(), self.api.local_size()) == (self.rank, self.size)
        assert (self.api.cross_rank(), self.api.cross_size()) == (0, 1)
        assert self.api.is_homogeneous()

    def check_zz_leaving_and_joining_again(self) -> None:
        """The last one: the groups are new ones afterwards."""
        result = self.api.allgather(self.tensor((5,)))
        if self.size > 1:
            pending = self.api.allreduce_async(self.tensor((5,)), name=f"only.{self.rank}")
            self.api.barrier()
            self.api.shutdown()
            assert self.api.poll(pending)
            self.expect_lost("shutdown() was called", self.api.synchronize, pending)
            self.init()
        for _ in range(3):
            self.api.barrier()
            self.api.shutdown()
            self.api.shutdown()
            assert not self.api.is_initialized()
            self.expect_error("not initialized", self.api.allreduce, self.tensor((2,)))
            self.expect_error("not initialized", self.api.rank)
            self.init()
            self.api.init()
            assert (self.api.rank(), self.api.size()) == (self.rank, self.size)
            self.expect_sum_works()
            self.check_overlapping_groups()
        self.expect(result, np.concatenate(self.of_all((5,))), "float32")
