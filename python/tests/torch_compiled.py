"""Checks of torch.compile. Training with torch.compile gives the same parameters as training in one
process without torch.compile."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd

STEPS = 4
Step = Callable[[torch.Tensor], object]


def compiled(function: Any) -> Any:
    # With this backend, Dynamo traces as usual, but no C++ compiler runs.
    return torch.compile(function, backend="aot_eager")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        yield torch.randn(4 * hvd.size(), 6, generator=generator)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step_of(model: nn.Module, optimizer: Any) -> Step:
    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def expect_equal_to_one_process(model: nn.Module, step: Step) -> None:
    single_process = copy.deepcopy(model)
    reference_step = step_of(single_process, sgd(single_process))
    for batch in batches():
        reference_step(batch)
        step(batch[hvd.rank() :: hvd.size()])
    expected = dict(single_process.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, expected[name])


class CompiledChecks:
    def __init__(self) -> None:
        hvd.init()

    def optimizer(self, model: nn.Module) -> Any:
        return hvd.DistributedOptimizer(sgd(model), model.named_parameters())

    def check_a_compiled_train_step(self) -> None:
        model = network()
        expect_equal_to_one_process(model, compiled(step_of(model, self.optimizer(model))))

    def check_a_compiled_model(self) -> None:
        model = network()
        expect_equal_to_one_process(model, step_of(compiled(model), self.optimizer(model)))

    def check_a_compiled_model_with_sync_batch_norm(self) -> None:
        torch.manual_seed(3)
        layers = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
        model = nn.Sequential(*layers)
        single_process = copy.deepcopy(model)
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        step = step_of(compiled(model), self.optimizer(model))
        reference_step = step_of(single_process, sgd(single_process))
        for batch in batches():
            reference_step(batch)
            step(batch[hvd.rank() :: hvd.size()])
        # The two models have the same names of tensors, and after training the same running
        # statistics.
        torch.testing.assert_close(model.state_dict(), single_process.state_dict())
        torch.testing.assert_close(compiled(model.eval())(batch), single_process.eval()(batch))

    def check_a_compiled_step_of_the_optimizer(self) -> None:
        model = network()
        optimizer = self.optimizer(model)
        step = compiled(optimizer.step)

        def train(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            step()

        expect_equal_to_one_process(model, train)

    def check_a_compiled_model_of_ddp(self) -> None:
        dist.init_process_group("farandole")
        model = network()
        parallel = compiled(DistributedDataParallel(model))
        expect_equal_to_one_process(model, step_of(parallel, sgd(model)))
        dist.destroy_process_group()

    def check_a_compiled_operation_of_torch(self) -> None:
        dist.init_process_group("farandole")

        def doubled_sum(tensor: torch.Tensor) -> torch.Tensor:
            doubled = tensor * 2
            dist.all_reduce(doubled)
            return doubled + 1

        total = compiled(doubled_sum)(torch.ones(3))
        assert total.tolist() == [2.0 * hvd.size() + 1] * 3
        dist.destroy_process_group()
