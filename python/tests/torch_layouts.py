"""Checks of parameters that are not contiguous, of a wait that is interrupted, and of copies."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

import farandole.torch as hvd
from farandole.errors import CallError


def images(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)


def network() -> nn.Sequential:
    """Return a model with a parameter in the memory format channels_last, and another one that is
    transposed."""
    torch.manual_seed(7)
    linear = nn.Linear(16, 2)
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(convolution, nn.Flatten(), linear).double()


class LayoutChecks:
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        for step in range(3):
            optimizer.zero_grad()
            model(images(self.rank, step)).square().mean().backward()
            optimizer.step()
        return model

    def check_fused_optimizers(self) -> None:
        """Fused optimizers read a parameter, its gradient and its state as flat memory, so all
        three must have the same strides."""
        makers: list[Callable[..., torch.optim.Optimizer]] = [
            torch.optim.Adam,
            partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        ]
        for make in makers:
            models = []
            for fused in (True, False):
                model = network()
                assert not any(p.is_contiguous() for p in (model[0].weight, model[2].weight))
                optimizer = hvd.DistributedOptimizer(make(model.parameters(), fused=fused))
                models.append(self.train(model, optimizer))
            hvd.check_parameters(models[0].named_parameters())
            for actual, expected in zip(*(model.parameters() for model in models), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)

    def check_ranks_with_different_strides(self) -> None:
        model = network()
        if self.rank == 0:
            model[0].weight.data = model[0].weight.data.contiguous()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            self.train(model, optimizer)
        except CallError as error:
            assert self.size > 1 and "[4, 3, 3, 3], strides (27, 1, 9, 3)" in str(error)
        else:
            assert self.size == 1

    def check_the_state_gets_the_strides_of_its_parameter(self) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        if self.rank == 0:
            self.train(model, optimizer)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for parameter in model.parameters():
            moving_average = optimizer.state[parameter]["exp_avg"]
            assert moving_average.is_contiguous() == parameter.is_contiguous()
            assert moving_average.stride() == parameter.stride() or parameter.is_contiguous()
            assert torch.equal(moving_average, hvd.broadcast(moving_average, 0))

    def check_strides_that_change_under_a_fused_optimizer(self) -> None:
        for skips in (False, True):
            model = network()
            optimizer: Any = torch.optim.Adam(model.parameters(), fused=True)
            optimizer = hvd.DistributedOptimizer(optimizer)
            self.train(model, optimizer)
            model[0].weight.data = model[0].weight.data.contiguous()
            optimizer.zero_grad()
            model(images(self.rank, 3)).square().mean().backward()
            if self.size == 1:  # a single rank keeps the gradients of torch
                optimizer.step()
                continue
            if skips:
                optimizer.synchronize()
            with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
                try:
                    optimizer.step()
                except CallError as error:
                    assert "make a new DistributedOptimizer" in str(error)
                else:
                    raise AssertionError("the strides were not checked")
            # When a new optimizer loads the state, the state gets the new strides, too.
            newer_optimizer: Any = torch.optim.Adam(model.parameters(), fused=True)
            newer_optimizer = hvd.DistributedOptimizer(newer_optimizer)
            newer_optimizer.load_state_dict(optimizer.state_dict())
            model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)
            newer_optimizer.load_state_dict(optimizer.state_dict())
            assert (
                newer_optimizer.state[model[0].weight]["exp_avg"].stride()
                == model[0].weight.stride()
            )

    def check_a_wait_that_is_interrupted_is_repeated(self) -> None:
        if self.size == 1:  # a rank that trains alone has no buckets
            return
        weight = nn.Parameter(torch.zeros(3))
        optimizer: Any = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer)
        weight.sum().backward()
        optimizer.step()  # the first step makes the bucket
        optimizer.zero_grad()
        [bucket] = optimizer._gradients._buckets
        original_start, waits = bucket.start, []

        def start_and_be_interrupted(*arguments: Any, **options: Any) -> None:
            original_start(*arguments, **options)
            finish = bucket.finish

            def finish_interrupted_once() -> None:
                waits.append(1)
                if len(waits) == 1:
                    raise KeyboardInterrupt
                finish()

            bucket.finish = finish_interrupted_once

        with mock.patch.object(bucket, "start", start_and_be_interrupted):
            with contextlib.suppress(KeyboardInterrupt):
                (weight.sum() * (self.rank + 1)).backward()
            optimizer.step()
        assert len(waits) == 2
        assert torch.equal(weight.detach(), torch.full((3,), -1 - (self.size + 1) / 2))

    def check_a_copied_process_set_is_that_of_this_rank(self) -> None:
        if self.size == 1:  # with one rank, this set would be the world
            return
        last_rank_set = hvd.add_process_set([self.size - 1])
        for copied in (
            hvd.broadcast_object(last_rank_set, 0),
            copy.copy(last_rank_set),
            copy.deepcopy(last_rank_set),
        ):
            assert copied is last_rank_set
        assert last_rank_set.included() == (self.rank == self.size - 1)
        hvd.remove_process_set(last_rank_set)
        copied_set = pickle.loads(pickle.dumps(last_rank_set))
        assert (copied_set.ranks, copied_set.included()) == (last_rank_set.ranks, None)
