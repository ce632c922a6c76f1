"""Checks of tensors that are not in host memory. Subclasses name the device."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from suite import Suite
from torch_frontend import TorchFrontend

import farandole.torch as hvd

warnings.filterwarnings("ignore", category=FutureWarning)  # torch 2.13 has renamed some functions


class DeviceChecks(Suite):
    device: str
    kind: str  # the engine's name for this kind of device

    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def to_device(self, tensor: torch.Tensor) -> Any:
        """Copy a tensor from host memory to the device."""
        raise NotImplementedError

    def to_host(self, tensor: Any) -> torch.Tensor:
        """Copy a tensor of the device to host memory."""
        raise NotImplementedError

    def expect_on_device(self, tensor: Any, expected: torch.Tensor) -> None:
        assert tensor.device.type == self.device, tensor.device
        on_host = self.to_host(tensor)
        assert torch.equal(on_host, expected), (on_host, expected)

    def check_results_come_back(self) -> None:
        on_host = torch.arange(1.0, 2 * self.size + 1).view(self.size, 2)
        tensor, total = self.to_device(on_host), on_host * self.size
        self.expect_on_device(hvd.allreduce(tensor, op=hvd.Sum), total)
        self.expect_on_device(hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum)), total)
        self.expect_on_device(
            hvd.reducescatter(tensor, op=hvd.Sum), total[self.rank : self.rank + 1]
        )
        self.expect_on_device(hvd.allgather(tensor), on_host.repeat(self.size, 1))
        received, rows = hvd.alltoall(
            tensor, self.to_device(torch.ones(self.size, dtype=torch.int32)).cpu()
        )
        self.expect_on_device(received, on_host[self.rank].repeat(self.size, 1))
        assert rows.is_cpu
        self.expect_on_device(
            hvd.broadcast(self.to_device(on_host * self.rank), self.size - 1),
            on_host * (self.size - 1),
        )
        for result in hvd.grouped_allreduce([tensor] * 2, op=hvd.Sum):
            self.expect_on_device(result, total)
        self.expect_on_device(tensor, on_host)

    def check_results_in_place(self) -> None:
        on_host = torch.arange(4.0)
        for form in (hvd.allreduce_, lambda t, op: hvd.synchronize(hvd.allreduce_async_(t, op=op))):
            tensor = self.to_device(on_host.clone())
            assert form(tensor, op=hvd.Sum) is tensor
            self.expect_on_device(tensor, on_host * self.size)
        tensor = self.to_device(on_host * self.rank)
        assert hvd.broadcast_(tensor, self.size - 1) is tensor
        self.expect_on_device(tensor, on_host * (self.size - 1))

    def check_ranks_on_different_devices(self) -> None:
        if self.size == 1:
            return
        on_host = torch.ones(3)
        text = self.expect_error(
            "`where`",
            hvd.allreduce,
            self.to_device(on_host) if self.rank else on_host,
            name="where",
        )
        assert "cpu" in text and self.kind in text, text
        self.expect_on_device(hvd.allreduce(self.to_device(on_host), name="where"), on_host)

    def check_another_default_device(self) -> None:
        """If the program sets another default device, the engine still allocates its memory on the
        host."""
        on_host = torch.arange(2.0 * self.size)
        with torch.device("meta"):
            own_part = hvd.reducescatter(on_host, op=hvd.Sum)
            _, rows = hvd.alltoall(on_host, [2] * self.size)
        assert torch.equal(own_part, on_host.tensor_split(self.size)[self.rank] * self.size)
        assert rows.tolist() == [2] * self.size

    def check_torch_distributed(self) -> None:
        dist.init_process_group("farandole")
        ranks = range(self.size)
        on_host = torch.arange(2.0 * self.size)
        own_part, total = on_host[2 * self.rank :][:2], on_host * self.size
        dist.all_reduce(tensor := self.to_device(on_host.clone()))
        self.expect_on_device(tensor, total)
        dist.broadcast(tensor := self.to_device(on_host * self.rank), self.size - 1)
        self.expect_on_device(tensor, on_host * (self.size - 1))
        dist.broadcast(
            tensor := self.to_device((on_host * (self.rank - 1)).to(torch.float8_e5m2)), 0
        )
        self.expect_on_device(tensor, (-on_host).to(torch.float8_e5m2))
        dist.reduce_scatter_tensor(
            output := self.to_device(torch.zeros(2)), self.to_device(on_host)
        )
        self.expect_on_device(output, own_part * self.size)
        dist.reduce_scatter(output, [self.to_device(part) for part in on_host.split(2)])
        self.expect_on_device(output, own_part * self.size)
        dist.all_gather_into_tensor(
            output := self.to_device(torch.zeros(2 * self.size)), self.to_device(own_part)
        )
        self.expect_on_device(output, on_host)
        outputs = [self.to_device(torch.zeros(2)) for _ in ranks]
        dist.all_gather(outputs, self.to_device(own_part))
        self.expect_on_device(torch.cat(outputs), on_host)
        dist.all_to_all(outputs, [self.to_device(part) for part in on_host.split(2)])
        self.expect_on_device(torch.cat(outputs), own_part.repeat(self.size))
        dist.all_to_all_single(output, self.to_device(on_host))
        self.expect_on_device(output, own_part.repeat(self.size))
        dist.scatter(
            outputs[0],
            [self.to_device(part) for part in on_host.split(2)] if self.rank == 0 else None,
        )
        self.expect_on_device(outputs[0], own_part)
        dist.gather(self.to_device(own_part), outputs if self.rank == 0 else None)
        dist.reduce(tensor := self.to_device(on_host.clone()), 0)
        if self.rank == 0:
            self.expect_on_device(torch.cat(outputs), on_host)
            self.expect_on_device(tensor, total)
        if self.size > 1:
            source = (self.rank - 1) % self.size
            receive_work = dist.irecv(tensor := self.to_device(torch.zeros(2)), source)
            dist.send(self.to_device(own_part), (self.rank + 1) % self.size)
            receive_work.wait()
            self.expect_on_device(tensor, on_host[2 * source :][:2])
        dist.destroy_process_group()
