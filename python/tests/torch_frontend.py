"""The torch frontend in the conformance suite, with the checks that only torch needs."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import torch
from conformance import Conformance
from reference import Array, values
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch as hvd


class TorchFrontend:
    api = hvd

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
        columns = [torch.tensor(values(r, (4, 6), "float32")).float() for r in range(self.size)]
        total = sum(columns)
        mine = columns[self.rank]
        assert torch.equal(hvd.allreduce(mine.t(), op=hvd.Sum), total.t())
        assert torch.equal(hvd.allreduce(mine[:, ::2], op=hvd.Sum), total[:, ::2])
        assert torch.equal(hvd.allgather(mine.t()), torch.cat([c.t() for c in columns]))
        whole = mine.clone()
        part = whole[:, 1:3]
        assert hvd.allreduce_(part, op=hvd.Sum) is part
        assert torch.equal(whole[:, 1:3], total[:, 1:3])
        assert torch.equal(whole[:, 3:], mine[:, 3:])
        handle = hvd.broadcast_async_(whole.t(), 0)
        assert torch.equal(hvd.synchronize(handle), whole.t())
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

    def check_torch_parameters(self) -> None:
        layer = torch.nn.Linear(3, 2)
        hvd.broadcast_(layer.weight, 0)
        assert layer.weight.requires_grad
        assert not hvd.synchronize(hvd.allreduce_async(layer.weight)).requires_grad
        with torch.inference_mode():
            hvd.allreduce_(torch.ones(3))

    def check_torch_gradients_of_results(self) -> None:
        """As Horovod has them: what comes back is reduced like the result, or averaged."""
        mean = (self.size + 1) / 2  # of 1 ... size
        factor = torch.tensor(self.rank + 1.0)
        for op, wanted in ((hvd.Sum, mean * self.size), (hvd.Average, mean)):
            tensor = torch.ones(3, requires_grad=True)
            (hvd.allreduce(tensor, op=op, name="forth") * factor).sum().backward()
            assert torch.equal(tensor.grad, torch.full((3,), wanted))
        for root in range(self.size):
            tensor = torch.ones(3, requires_grad=True)
            (hvd.broadcast(tensor, root) * factor).sum().backward()
            assert torch.equal(tensor.grad, torch.full((3,), mean * (self.rank == root)))
        tensor = torch.ones(self.rank + 1, 2, requires_grad=True)
        gathered = hvd.allgather(tensor)
        weights = torch.arange(len(gathered), dtype=torch.float32)[:, None]
        (gathered * weights).sum().backward()
        first = self.rank * (self.rank + 1) // 2
        assert torch.equal(tensor.grad, weights[first : first + self.rank + 1].expand(-1, 2))
        largest = hvd.allreduce(torch.ones(3, requires_grad=True), op=hvd.Max)
        self.expect_error("op Max has no gradient", largest.sum().backward)

    def check_torch_what_cannot_be_sent(self) -> None:
        self.expect_error("complex64", hvd.allreduce, torch.ones(2, dtype=torch.complex64))
        self.expect_error("to_dense", hvd.allreduce, torch.ones(2, 2).to_sparse())
        self.expect_error("meta", hvd.allreduce, torch.ones(2, device="meta"))
        self.expect_error("torch.Tensor", hvd.allreduce, [1.0])

    def check_torch_data_loader_with_forked_workers(self) -> None:
        data = TensorDataset(torch.arange(40.0))
        loader = DataLoader(data, 5, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            for (batch,) in loader:
                found = hvd.allreduce(batch, op=hvd.Sum)
                assert torch.equal(found, batch * self.size)

    def check_torch_other_threads_run_during_a_wait(self) -> None:
        if self.size == 1:
            return
        if self.rank != 0:  # the first call needs rank 0's second thread
            hvd.allreduce(torch.ones(2), name="early")
            hvd.allreduce(torch.ones(2), name="late")
            return
        main_waits = threading.Event()

        def work() -> None:
            main_waits.wait()
            hvd.allreduce(torch.ones(2), name="early")

        thread = threading.Thread(target=work)
        thread.start()
        handle = hvd.allreduce_async(torch.ones(2), name="late")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # the other thread runs only if the wait lets it
        main_waits.set()
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
            total = np.sum(self.of_all((20_000,), seed=seed), 0)
            self.expect(hvd.synchronize(handle), total, "float32")
