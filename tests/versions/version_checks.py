"""Checks that must pass on every version of torch. python/tests/worker.py runs them on each rank.

The names of the checks sort so that simple ones come first, because a failed check ends the job.
"""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd

STEPS, BATCH = 4, 6
warnings.filterwarnings("ignore", category=FutureWarning)


def network() -> nn.Module:
    """Return a model whose parameters differ by rank, until training makes them the same."""
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else hvd.rank())
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int) -> None:
    """Train with every `size`-th sample of each batch, so that the ranks together use all
    samples."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        batch = torch.randn(BATCH, 6, generator=generator)
        optimizer.zero_grad()
        model(batch[rank::size]).square().mean().backward()
        optimizer.step()


def expect_equal_to_one_process(start_model: nn.Module, trained: nn.Module) -> None:
    """Train `start_model` with all samples in this process alone. Compare its parameters with
    those of `trained`."""
    train(start_model, torch.optim.Adam(start_model.parameters(), lr=0.01), 0, 1)
    expected = dict(start_model.named_parameters())
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-5, atol=1e-6)


class VersionChecks:
    def check_1_import(self) -> None:
        assert torch.__version__.startswith(os.environ["WANTED_TORCH"]), torch.__version__

    def check_2_allreduce(self) -> None:
        hvd.init()
        numbers = torch.arange(6.0).reshape(2, 3) + hvd.rank()
        total = hvd.allreduce(numbers, op=hvd.Sum)
        expected = sum(torch.arange(6.0).reshape(2, 3) + rank for rank in range(hvd.size()))
        assert torch.equal(total, expected)
        for dtype in (torch.bfloat16, torch.float64, torch.int32, torch.bool):
            hvd.allreduce_(tensor := torch.ones(3, dtype=dtype), op=hvd.Max)
            assert tensor.tolist() == [1] * 3

    def check_3_optimizer(self) -> None:
        model = network()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        start_model = copy.deepcopy(model)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        train(model, optimizer, hvd.rank(), hvd.size())
        expect_equal_to_one_process(start_model, model)
        hvd.shutdown()

    def check_4_backend(self) -> None:
        dist.init_process_group("farandole")
        assert dist.get_backend() == "farandole"
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.broadcast(tensor := torch.full((3,), float(rank)), src=1)
        assert tensor.tolist() == [1.0] * 3
        dist.all_gather(
            parts := [torch.empty(2) for _ in range(size)], torch.full((2,), rank + 0.5)
        )
        assert [part.tolist() for part in parts] == [[other + 0.5] * 2 for other in range(size)]
        dist.all_gather_into_tensor(whole := torch.empty(2 * size), torch.full((2,), float(rank)))
        assert whole.tolist() == [float(other) for other in range(size) for _ in range(2)]
        dist.reduce_scatter_tensor(output := torch.empty(2), torch.ones(2 * size))
        assert output.tolist() == [size] * 2
        work = dist.all_reduce(ones := torch.ones(2), async_op=True)
        work.wait()
        assert ones.tolist() == [size] * 2
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": other} for other in range(size)]
        dist.barrier()

    def check_5_messages(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        next_rank, previous_rank = (rank + 1) % size, (rank - 1) % size
        received = torch.empty(2)
        pair = [
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), next_rank),
            dist.P2POp(dist.irecv, received, previous_rank),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        assert received.tolist() == [previous_rank] * 2

    def check_6_new_group(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        member_lists = [list(range(size)), *([other] for other in range(size))]
        groups = [dist.new_group(ranks) for ranks in member_lists]
        for ranks, group in zip(member_lists, groups, strict=True):
            if rank in ranks:
                dist.all_reduce(tensor := torch.ones(2), group=group)
                assert tensor.tolist() == [len(ranks)] * 2
        group_of_one = dist.new_group([rank], use_local_synchronization=True)
        dist.all_reduce(tensor := torch.ones(2), group=group_of_one)
        assert tensor.tolist() == [1] * 2
        mixed_group = dist.new_group(backend="cpu:gloo,cuda:farandole")
        backend = mixed_group._get_backend(torch.device("cpu"))
        assert type(backend).__name__ == "ProcessGroupGloo"
        dist.all_reduce(tensor, group=mixed_group)
        assert tensor.tolist() == [size] * 2

    def check_7_ddp(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        for finds_unused, views in itertools.product((False, True), repeat=2):
            parallel = DistributedDataParallel(
                network(), find_unused_parameters=finds_unused, gradient_as_bucket_view=views
            )
            start_model = copy.deepcopy(parallel.module)
            train(parallel, torch.optim.Adam(parallel.parameters(), lr=0.01), rank, size)
            expect_equal_to_one_process(start_model, parallel.module)
        dist.destroy_process_group()
