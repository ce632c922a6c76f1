"""The torch frontend for the conformance suite, and the checks that only torch needs."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from conformance import Conformance
from reference import DTYPES, Array, input_of
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch as hvd


class TorchFrontend:
    api = hvd
    dtypes = DTYPES
    has_async = has_in_place = True

    def tensor(self, values: Array, dtype: str) -> torch.Tensor:
        return torch.tensor(np.asarray(values)).to(getattr(torch, dtype))

    def array(self, tensor: torch.Tensor) -> Array:
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()

    def dtype(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")


class TorchConformance(Conformance):
    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def check_torch_any_strides(self) -> None:
        columns = [torch.tensor(input_of(r, (4, 6), "float32")).float() for r in range(self.size)]
        total = sum(columns)
        own_rows = columns[self.rank]
        assert torch.equal(hvd.allreduce(own_rows.t(), op=hvd.Sum), total.t())
        assert torch.equal(hvd.allreduce(own_rows[:, ::2], op=hvd.Sum), total[:, ::2])
        assert torch.equal(hvd.allgather(own_rows.t()), torch.cat([c.t() for c in columns]))
        whole_tensor = own_rows.clone()
        view = whole_tensor[:, 1:3]
        assert hvd.allreduce_(view, op=hvd.Sum) is view
        assert torch.equal(whole_tensor[:, 1:3], total[:, 1:3])
        assert torch.equal(whole_tensor[:, 3:], own_rows[:, 3:])
        handle = hvd.broadcast_async_(whole_tensor.t(), 0)
        assert torch.equal(hvd.synchronize(handle), whole_tensor.t())
        self.expect_error("expanded", hvd.allreduce_, torch.ones(1).expand(3))

    def check_torch_autograd_notices_changes(self) -> None:
        weight = torch.ones(3, requires_grad=True)
        for call in (hvd.allreduce_, lambda tensor: hvd.broadcast_(tensor, 0)):
            middle = weight * 2
            loss = (middle * middle).sum()
            call(middle)
            try:
                loss.backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)
            else:
                raise AssertionError("autograd used a tensor that was changed")

    def check_torch_calls_on_parameters(self) -> None:
        layer = torch.nn.Linear(3, 2)
        hvd.broadcast_(layer.weight, 0)
        assert layer.weight.requires_grad
        assert not hvd.synchronize(hvd.allreduce_async(layer.weight)).requires_grad
        with torch.inference_mode():
            hvd.allreduce_(torch.ones(3))

    # As in Horovod, the backward pass of an allreduce reduces the gradients with the same op, and
    # that of an allgather or broadcast averages them. Each rank multiplies its output by rank + 1,
    # so the gradient of this output is rank + 1.

    def expect_gradients(
        self,
        call: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        expected: torch.Tensor,
        rows: int = 3,
        count: int = 1,
    ) -> None:
        inputs = [torch.ones(rows, 2, requires_grad=True) for _ in range(count)]
        outputs = call(inputs)
        assert len(outputs) == count
        sum((output * (self.rank + 1)).sum() for output in outputs).backward()
        for tensor in inputs:
            assert torch.equal(tensor.grad, expected.expand(rows, 2)), (tensor.grad, expected)

    def expect_gradients_alone_and_grouped(
        self, operation: str, expected: torch.Tensor, rows: int = 3, **options: Any
    ) -> None:
        single_call = getattr(hvd, operation)
        grouped = getattr(hvd, f"grouped_{operation}")
        self.expect_gradients(lambda tensors: [single_call(*tensors, **options)], expected, rows)
        self.expect_gradients(
            lambda tensors: grouped(tensors, name="g", **options), expected, rows, count=3
        )

    def check_torch_gradients(self) -> None:
        mean = torch.tensor((self.size + 1) / 2)  # the mean of 1 ... size
        expect = self.expect_gradients_alone_and_grouped
        for op, factor in ((hvd.Sum, self.size), (hvd.Average, 1)):
            scales = {"prescale_factor": 2.0, "postscale_factor": 0.25}
            expect("allreduce", mean * factor, op=op)
            expect("allreduce", mean * factor / 2, op=op, **scales)
            rank_gradients = torch.arange(1.0, self.size + 1)
            rows = torch.repeat_interleave(
                rank_gradients,
                torch.tensor([len(part) for part in torch.ones(7).tensor_split(self.size)]),
            )
            expect("reducescatter", rows[:, None] * factor, rows=7, op=op)
            expect("reducescatter", rows[:, None] * factor / 2, rows=7, op=op, **scales)
        for root in range(self.size):
            expect("broadcast", mean * (self.rank == root), root_rank=root)
        expect("allgather", mean, rows=self.rank + 1)
        expect("alltoall", torch.repeat_interleave(rank_gradients, 2)[:, None], rows=2 * self.size)

    def check_torch_gradients_with_splits(self) -> None:
        """The gradient of rows that were sent to no rank is zero."""
        splits = [member + 1 for member in range(self.size)]
        tensor = torch.ones(sum(splits) + 2, requires_grad=True)
        received, rows = hvd.alltoall(tensor, splits)
        assert rows.tolist() == [self.rank + 1] * self.size
        (received * (self.rank + 1)).sum().backward()
        rank_gradients = torch.arange(1.0, self.size + 1)
        expected = torch.cat(
            (torch.repeat_interleave(rank_gradients, torch.tensor(splits)), torch.zeros(2))
        )
        assert torch.equal(tensor.grad, expected)

    def check_torch_gradients_of_a_batch_of_different_kinds(self) -> None:
        """Integers have no gradient. Unused tensors have a gradient of zeros. Second derivatives
        work."""
        used_tensor, unused_tensor = (
            torch.ones(2, requires_grad=True),
            torch.ones(3, requires_grad=True),
        )
        results = hvd.grouped_allgather([used_tensor, torch.arange(3), unused_tensor], name="mixed")
        assert [len(result) for result in results] == [2 * self.size, 3 * self.size, 3 * self.size]
        (results[0] * (self.rank + 1)).sum().backward()
        assert torch.equal(used_tensor.grad, torch.full((2,), (self.size + 1) / 2))
        assert torch.equal(unused_tensor.grad, torch.zeros(3))
        tensor = torch.full((2,), 3.0, requires_grad=True)
        result = hvd.allreduce(tensor**3)
        (first_derivative,) = torch.autograd.grad(result.sum(), tensor, create_graph=True)
        (second_derivative,) = torch.autograd.grad(first_derivative.sum(), tensor)
        assert torch.equal(second_derivative, torch.full((2,), 18.0))

    def check_torch_gradients_of_other_ops(self) -> None:
        """As in Horovod, the backward pass reduces the gradients with the same op. For these ops,
        this is not the derivative."""
        for op, expected in (
            ("Min", 1.0),
            ("Max", self.size),
            ("Product", math.factorial(self.size)),
        ):
            self.expect_gradients_alone_and_grouped(
                "allreduce", torch.tensor(float(expected)), op=getattr(hvd, op)
            )

    def check_torch_gradients_in_groups(self) -> None:
        for group in self.my_groups():
            mean = sum(rank + 1 for rank in group.ranks) / group.size()
            for operation, factor in (("allreduce", 1), ("reducescatter", None), ("allgather", 1)):
                tensor = torch.ones(group.size(), 2, requires_grad=True)
                result = getattr(hvd, operation)(tensor, process_set=group)
                (result * (self.rank + 1)).sum().backward()
                row_gradients = torch.tensor([[rank + 1.0] for rank in group.ranks])
                expected = row_gradients if factor is None else torch.tensor(mean)
                assert torch.equal(tensor.grad, expected.expand(group.size(), 2)), operation
            tensor = torch.ones(group.size(), requires_grad=True)
            (hvd.alltoall(tensor, process_set=group) * (self.rank + 1)).sum().backward()
            assert torch.equal(tensor.grad, torch.tensor([rank + 1.0 for rank in group.ranks]))
            tensor = torch.ones(2, requires_grad=True)
            root = group.ranks[-1]
            hvd.broadcast(tensor, root, process_set=group).sum().backward()
            assert torch.equal(tensor.grad, torch.full((2,), float(self.rank == root)))

    def check_torch_results_without_gradient(self) -> None:
        largest = hvd.reducescatter(torch.ones(self.size, requires_grad=True), op=hvd.Max)
        self.expect_error("op Max has no gradient", largest.sum().backward)
        with torch.no_grad():
            assert not hvd.allreduce(torch.ones(3, requires_grad=True)).requires_grad
        handle = hvd.allgather_async(torch.ones(3, requires_grad=True))
        assert not hvd.synchronize(handle).requires_grad

    def check_torch_unusual_tensors(self) -> None:
        """Calls accept a tensor with torch's negative bit, and an empty one with unusual strides.

        If a tensor has the negative bit, its memory holds the negatives of its values.
        """
        negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
        assert negated.is_neg()
        expected = torch.tensor([-2.0, -4.0])
        assert torch.equal(hvd.allreduce(negated), expected)
        assert torch.equal(hvd.broadcast_(negated, 0), expected)
        empty = torch.empty(2, 0).as_strided((2, 0), (0, 0))
        assert hvd.allreduce_(empty) is empty

    def check_torch_tensors_that_cannot_be_sent(self) -> None:
        self.expect_error("complex64", hvd.allreduce, torch.ones(2, dtype=torch.complex64))
        self.expect_error("to_dense", hvd.allreduce, torch.ones(2, 2).to_sparse())
        self.expect_error("meta", hvd.allreduce, torch.ones(2, device="meta"))
        self.expect_error("torch.Tensor", hvd.allreduce, [1.0])

    def check_torch_data_loader_with_forked_workers(self) -> None:
        data = TensorDataset(torch.arange(40.0))
        loader = DataLoader(data, 5, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            for (batch,) in loader:
                total = hvd.allreduce(batch, op=hvd.Sum)
                assert torch.equal(total, batch * self.size)

    def check_torch_other_threads_run_during_a_wait(self) -> None:
        if self.size == 1:
            return
        if self.rank != 0:  # the first call of the other ranks waits for rank 0's second thread
            hvd.allreduce(torch.ones(2), name="early")
            hvd.allreduce(torch.ones(2), name="late")
            return
        main_thread_waits = threading.Event()

        def work() -> None:
            main_thread_waits.wait()
            hvd.allreduce(torch.ones(2), name="early")

        thread = threading.Thread(target=work)
        thread.start()
        handle = hvd.allreduce_async(torch.ones(2), name="late")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # only a wait can release the GIL
        main_thread_waits.set()
        hvd.synchronize(handle)
        sys.setswitchinterval(interval)
        thread.join()

    def check_torch_memory_is_kept_alive(self) -> None:
        handles: list[Any] = []
        for seed in range(30):
            tensor = self.tensor((20_000,), seed=seed)
            handles.append(hvd.allreduce_async(tensor, op=hvd.Sum))
            del tensor
        for seed, handle in enumerate(handles):
            total = np.sum(self.inputs_of_all((20_000,), seed=seed), 0)
            self.expect(hvd.synchronize(handle), total, "float32")
