"""Checks on a GPU that all ranks share. They need a GPU, and are skipped without one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from conformance import Conformance
from reference import Array
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_devices import DeviceChecks
from torch_frontend import TorchFrontend
from torch_optimizer import OptimizerChecks, OptimizerFixture

import farandole.torch as hvd

GPU = torch.device("cuda", 0)


class GpuFrontend(TorchFrontend):
    def tensor(self, values: Array, dtype: str) -> torch.Tensor:
        return super().tensor(values, dtype).to(GPU)

    def array(self, tensor: torch.Tensor) -> Array:
        return super().array(tensor.cpu())


class GpuConformance(Conformance):
    def __init__(self) -> None:
        super().__init__(GpuFrontend())

    def check_a_forked_child_gets_errors(self) -> None:
        print("skipped on a GPU, because a forked child cannot use CUDA at all")


class GpuDevice(DeviceChecks):
    device = kind = "cuda"

    def to_device(self, tensor: torch.Tensor) -> Any:
        return tensor.to(GPU)

    def to_host(self, tensor: Any) -> torch.Tensor:
        return tensor.cpu()

    def check_sparse(self) -> None:
        """All ranks add up the rows of an index in the same order, so they get the same bits."""
        torch.manual_seed(self.rank)
        for _ in range(5):
            indices = torch.randint(0, 20, (1, 5000))
            rows = torch.sparse_coo_tensor(indices, torch.randn(5000, 8), (20, 8)).to(GPU)
            expected = hvd.allreduce(rows.to_dense().double(), op=hvd.Sum)
            actual = hvd.sparse_allreduce_async(rows, "rows", hvd.Sum)().to_dense()
            torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)
            assert actual.device == GPU
            assert all(torch.equal(other, actual) for other in hvd.allgather(actual[None]))

    def check_streams(self) -> None:
        """A call waits for what the current stream computes, and the stream waits for the call."""
        total = sum(range(self.size))
        for round_number in range(10):
            stream = torch.cuda.Stream()
            matrix = torch.randn(3000, 3000, device=GPU)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(10):
                    matrix = torch.tanh(matrix @ matrix)
                tensor = torch.full((1 << 20,), float(self.rank + round_number), device=GPU)
                tensor += 0 * matrix.sum()
                handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
                matrix = matrix @ matrix
                doubled = hvd.synchronize(handle) * 2
                assert bool((doubled == 2 * (total + round_number * self.size)).all())


def network() -> nn.Sequential:
    torch.manual_seed(7)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers).double().to(GPU)


def class_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    values = torch.randn(8, 64, generator=generator, dtype=torch.float64)
    classes = torch.randint(0, 10, (8,), generator=generator)
    dtype = next(model.parameters()).dtype
    return cross_entropy(model(values.to(GPU, dtype)), classes.to(GPU))


def momentum_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class GpuTraining(OptimizerFixture):
    """Training is compared with training in one process on the batches of all ranks."""

    compare = OptimizerChecks.compare

    def trained_reference(self) -> nn.Module:
        model = network()
        self.train_reference(model, momentum_sgd(model), range(6), class_loss)
        return model

    def check_optimizer(self) -> None:
        self.compare(momentum_sgd, class_loss, network)

    def check_optimizer_in_another_stream(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.compare(momentum_sgd, class_loss, network)
        stream.synchronize()

    def check_compiled_model(self) -> None:
        model = network()
        optimizer = hvd.DistributedOptimizer(momentum_sgd(model), model.named_parameters())
        self.train(torch.compile(model), optimizer, range(6), class_loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, self.trained_reference())

    def check_grad_scaler(self) -> None:
        """Train once with clipping, as Horovod documents it, and once without clipping."""
        for clips, dtype in ((True, torch.float16), (False, torch.bfloat16)):
            model = network().float()
            adam = torch.optim.Adam(model.parameters(), fused=True)
            optimizer = hvd.DistributedOptimizer(adam, model.named_parameters())
            scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
            for step in range(6):
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype):
                    loss = class_loss(model, self.rank, step)
                scaler.scale(loss).backward()
                if clips:
                    optimizer.synchronize()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    with optimizer.skip_synchronize():
                        scaler.step(optimizer)
                else:
                    scaler.step(optimizer)
                scaler.update()
            self.expect_same_everywhere(model)

    def check_torch_distributed(self) -> None:
        dist.init_process_group("farandole")
        reference = self.trained_reference()
        for is_compiled in (False, True):
            model = network()
            parallel = DistributedDataParallel(model, device_ids=[0])
            trained = torch.compile(parallel) if is_compiled else parallel
            self.train(trained, momentum_sgd(model), range(6), class_loss)
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)
        model = network()
        sharded_state = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9
        )
        self.train(DistributedDataParallel(model), sharded_state, range(6), class_loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)
        model = network()
        fully_shard(model)
        self.train(model, momentum_sgd(model), range(6), class_loss)
        for actual, expected in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(actual.full_tensor(), expected, rtol=1e-9, atol=1e-9)
        dist.destroy_process_group()
