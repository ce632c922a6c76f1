"""Checks DistributedOptimizer against training in one process on the batches of all ranks.

Most checks use float64, in which the order of additions hardly matters. A few check other dtypes.
"""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from conformance import Conformance
from torch import nn
from torch_frontend import TorchFrontend

import farandole.torch as hvd
from farandole import lifecycle
from farandole.torch.training.gradients import Gradients

Loss = Callable[[nn.Module, int, int], torch.Tensor]  # computes the loss from model, rank, step

BATCH = 6


def batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(BATCH, 5, generator=generator, dtype=torch.float64).to(dtype)


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(7)
    layers = [nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)]
    return nn.Sequential(*layers).to(dtype)


def square_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(batch(rank, step, next(model.parameters()).dtype)).square().mean()


def is_shared_by_all_ranks(tensor: torch.Tensor) -> bool:
    return lifecycle.engine().is_shared(tensor.data_ptr(), tensor.nbytes)


class OptimizerChecks:
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    # Functions that the checks share

    def expect_same_everywhere(self, model: nn.Module) -> None:
        """Check that the parameters are equal on all ranks, bit by bit."""
        for parameter in model.parameters():
            parameter_bytes = parameter.detach().contiguous().view(-1).view(torch.uint8)
            copies = hvd.allgather(parameter_bytes[None])
            assert all(torch.equal(other, parameter_bytes) for other in copies)

    def expect_equal(self, model: nn.Module, reference: nn.Module, tolerance: float = 1e-9) -> None:
        for actual, expected in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    def train_reference(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: Iterable[int],
        loss: Loss = square_loss,
    ) -> None:
        """Train in this process with the batches of all ranks."""
        for step in steps:
            optimizer.zero_grad()
            for rank in range(self.size):
                (loss(model, rank, step) / self.size).backward()
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: Iterable[int],
        loss: Loss = square_loss,
    ) -> None:
        for step in steps:
            optimizer.zero_grad(set_to_none=step % 3 != 2)
            loss(model, self.rank, step).backward()
            optimizer.step()

    def compare(
        self,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        loss: Loss = square_loss,
        build_model: Callable[[], nn.Module] = network,
        steps: int = 7,
    ) -> None:
        model, reference = build_model(), build_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        self.train(model, optimizer, range(steps), loss)
        self.train_reference(reference, make_optimizer(reference), range(steps), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    expect_error = Conformance.expect_error
    api = TorchFrontend.api

    def expect_lost(self, call: Callable[[], object]) -> None:
        try:
            call()
        except hvd.GroupLostError:
            return
        raise AssertionError("no error, though the other ranks have left")

    # The checks

    def check_optimizers_of_several_kinds(self) -> None:
        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
        self.compare(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        )
        self.compare(lambda m: torch.optim.AdamW(m.parameters(), lr=0.01))

    def check_bucket_sizes(self) -> None:
        for size in ("0", "1000", "100000"):
            hvd.shutdown()
            os.environ["FARANDOLE_BUCKET_BYTES"] = size
            hvd.init()
            self.compare(lambda m: torch.optim.Adam(m.parameters()))
        hvd.shutdown()
        del os.environ["FARANDOLE_BUCKET_BYTES"]
        hvd.init()

    def check_parameter_groups(self) -> None:
        def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
            weight, *others = list(model.parameters())
            return torch.optim.SGD([{"params": [weight], "lr": 0.5}, {"params": others}], lr=0.05)

        self.compare(make_optimizer)

    def check_dtypes(self) -> None:
        for dtype, tolerance in ((torch.bfloat16, 0.05), (torch.float32, 1e-5)):
            model, reference = network(dtype), network(torch.float64)
            model[0].double()  # two dtypes in one model need two buckets
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

            def loss(m: nn.Module, rank: int, step: int) -> torch.Tensor:
                x = m[0](batch(rank, step))
                return m[1:](x.to(m[2].weight.dtype)).square().mean()

            self.train(model, optimizer, range(4), loss)
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            self.train_reference(reference, reference_optimizer, range(4), loss)
            self.expect_same_everywhere(model)
            self.expect_equal(model.double(), reference, tolerance)

    def check_gradients_lie_in_shared_memory(self) -> None:
        if self.size == 1:
            return
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer, range(2))
        storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
        assert len(storages) == 1
        assert all(p.grad.data_ptr() % 128 == 0 for p in model.parameters())
        assert all(is_shared_by_all_ranks(p.grad) for p in model.parameters())
        assert not any(is_shared_by_all_ranks(p) for p in model.parameters())
        addresses = [p.grad.data_ptr() for p in model.parameters()]
        self.train(model, optimizer, range(2))
        assert addresses == [p.grad.data_ptr() for p in model.parameters()]

    def check_ranks_that_use_different_parameters(self) -> None:
        """Each rank uses a different part of the model, and no rank uses the last part."""

        def build_model() -> nn.Module:
            torch.manual_seed(3)
            return nn.ModuleList(nn.Linear(5, 1) for _ in range(self.size + 1)).double()

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            return model[(rank + step) % self.size](batch(rank, step)).square().mean()

        self.compare(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), loss, build_model
        )

    def check_unused_parameters_get_gradients(self) -> None:
        """If unused parameters have gradients, the ranks need not agree on them in each step."""
        if self.size == 1:
            return
        model, reference = network(), network()
        unused_layer = nn.Linear(3, 3).double()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([*model.parameters(), *unused_layer.parameters()], lr=0.1)
        )
        self.train(model, optimizer, range(2))
        previous_gradients = [parameter.grad for parameter in unused_layer.parameters()]
        self.train(model, optimizer, [3])  # at first, zero_grad() sets the gradients to None
        pairs = zip(unused_layer.parameters(), previous_gradients, strict=True)
        assert all(parameter.grad is previous for parameter, previous in pairs)
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, [0, 1, 3])
        self.expect_equal(model, reference)

    def check_gradients_stay_shared_in_a_new_job(self) -> None:
        """Gradients stay in shared memory in a new job, even if a pass failed in the old job."""
        if self.size == 1:
            return
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            self.train(model, optimizer, [2 * step])
            addresses = [p.grad.data_ptr() for p in model.parameters()]
            hvd.shutdown()
            hvd.init()
            if self.rank == 0:  # this pass fails, because the other ranks leave the job
                self.expect_lost(square_loss(model, self.rank, 9).backward)
                optimizer.load_state_dict(optimizer.state_dict())
            hvd.shutdown()
            hvd.init()
            self.train(model, optimizer, [2 * step + 1])
            assert all(is_shared_by_all_ranks(p.grad) for p in model.parameters())
            assert addresses == [p.grad.data_ptr() for p in model.parameters()]
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(6))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_frozen_parameters(self) -> None:
        """Layers may be frozen, unfrozen and frozen again, if all ranks do the same."""
        model, reference = network(), network()
        models = (model, reference)
        for module in models:
            module[2].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(12):
            for module in models:
                module[2].requires_grad_(step % 4 > 1)
                module[0].requires_grad_(step % 3 > 0)
            self.train(model, optimizer, [step])
            self.train_reference(reference, reference_optimizer, [step])
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_shared_weights(self) -> None:
        def build_model() -> nn.Module:
            torch.manual_seed(5)
            layer = nn.Linear(5, 5).double()
            return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(5, 1).double())

        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), build_model=build_model)

    def check_sparse_gradients_train_as_in_one_process(self) -> None:
        def build_model() -> nn.Module:
            torch.manual_seed(5)
            return nn.Embedding(20, 3, sparse=True).double()

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            return model(torch.tensor([rank, step, 3])).square().sum()

        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss, build_model)

    def check_several_passes_per_step(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)

        def both_losses(module: nn.Module, rank: int, step: int) -> torch.Tensor:
            return square_loss(module, rank, 2 * step) + square_loss(module, rank, 2 * step + 1)

        for step in range(5):
            optimizer.zero_grad()
            square_loss(model, self.rank, 2 * step).backward()
            square_loss(model, self.rank, 2 * step + 1).backward()
            optimizer.step()
        self.train_reference(reference, reference_optimizer, range(5), both_losses)
        optimizer.set_backward_passes_per_step(1)
        self.train(model, optimizer, range(5, 8), both_losses)
        self.train_reference(reference, reference_optimizer, range(5, 8), both_losses)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_op_sum(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), op=hvd.Sum
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.01 * self.size)
        self.train(model, optimizer, range(3))
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_equal(model, reference)

    def check_a_process_set_of_two_ranks(self) -> None:
        """In a larger job, ranks 0 and 1 train without the others."""
        if self.size < 3:
            return
        hvd.shutdown()
        pair = hvd.ProcessSet([0, 1])
        hvd.init(process_sets=[pair])
        model, reference = network(), network()
        wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if pair.included():  # the other ranks do not train
            optimizer = hvd.DistributedOptimizer(wrapped_optimizer, process_set=pair)
            self.train(model, optimizer, range(3))
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            self.size = 2
            self.train_reference(reference, reference_optimizer, range(3))
            self.size = hvd.size()
            self.expect_equal(model, reference)
        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))

    def check_ranks_outside_of_a_process_set(self) -> None:
        """A rank that is not in the process set trains alone."""
        if self.size == 1:
            return
        hvd.shutdown()
        set_of_rank_0 = hvd.ProcessSet([0])
        hvd.init(process_sets=[set_of_rank_0])
        model, reference = network(), network()
        wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.train(
            model, hvd.DistributedOptimizer(wrapped_optimizer, process_set=set_of_rank_0), range(2)
        )
        self.train(reference, torch.optim.SGD(reference.parameters(), lr=0.1), range(2))
        self.expect_equal(model, reference, tolerance=0)
        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))

    def check_a_rank_without_gradients_takes_part_in_a_step(self) -> None:
        """After zero_grad(), rank 0 computes no gradients, but takes part in the next step."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        square_loss(model, self.rank, 0).backward()
        optimizer.synchronize()
        optimizer.zero_grad()
        if self.rank != 0:
            square_loss(model, self.rank, 1).backward()
        optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(
            reference,
            reference_optimizer,
            [1],
            lambda m, rank, step: square_loss(m, rank, step) * (rank > 0),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_step_after_one_with_a_closure(self) -> None:
        """Without zero_grad(), the second step adds to the gradients of the first."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def evaluate() -> torch.Tensor:
            loss = square_loss(model, self.rank, 0)
            loss.backward()
            return loss

        optimizer.step(evaluate)
        if self.rank != 0:
            square_loss(model, self.rank, 1).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in (0, 1):
            for rank in range(step, self.size):
                (square_loss(reference, rank, step) / self.size).backward()
            reference_optimizer.step()
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_an_optimizer_that_takes_no_closure(self) -> None:
        class Descent(torch.optim.SGD):
            def step(self) -> None:  # type: ignore[override]
                super().step()

        self.compare(lambda m: Descent(m.parameters(), lr=0.1))

    def check_clipping(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=1.0)

        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(reference.parameters(), 0.01)

        reference_optimizer.register_step_pre_hook(clip)
        for step in range(4):
            optimizer.zero_grad()
            square_loss(model, self.rank, step).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            with warnings.catch_warnings(), optimizer.skip_synchronize():
                warnings.simplefilter("error")
                optimizer.step()
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_gradients_may_be_changed_after_backward(self) -> None:
        def clip(model: nn.Module) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        def replace(model: nn.Module) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = parameter.grad * 2

        for change_gradients in (clip, replace):
            model, reference = network(), network()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            reference_optimizer.register_step_pre_hook(
                lambda *_, m=reference, change_gradients=change_gradients: change_gradients(m)
            )
            for step in range(3):
                optimizer.zero_grad()
                square_loss(model, self.rank, step).backward()
                change_gradients(model)
                optimizer.step()
            self.train_reference(reference, reference_optimizer, range(3))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_gradients_whose_memory_the_program_replaces(self) -> None:
        """The program gives gradients new memory, which torch's version counter does not notice.
        step() must use the new values."""

        def halve(model: nn.Module) -> None:
            for parameter in model.parameters():
                parameter.grad.data = parameter.grad.data * 0.5

        def build_model() -> nn.Module:
            torch.manual_seed(7)
            return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 9, 2)).double()

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            return model(batch(rank, step).repeat(1, 5).view(BATCH, 1, 5, 5)).square().mean()

        def convert_to_channels_last(model: nn.Module) -> None:
            model.to(memory_format=torch.channels_last)

        def write_through_numpy(model: nn.Module) -> None:
            for parameter in model.parameters():
                parameter.grad.set_(torch.from_numpy(parameter.grad.numpy().copy()))

        for change_gradients in (halve, convert_to_channels_last, write_through_numpy):
            model, reference = build_model(), build_model()
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            for step in range(6):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                loss(model, self.rank, step).backward()
                optimizer.synchronize()
                change_gradients(model)
                with optimizer.skip_synchronize():
                    optimizer.step()
                reference_optimizer.zero_grad()
                sum(loss(reference, rank, step) / self.size for rank in range(self.size)).backward()
                if change_gradients is halve:
                    halve(reference)
                reference_optimizer.step()
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)
            loss(model, self.rank, 0).backward()
            halve(model)
            optimizer.step()
            self.expect_same_everywhere(model)

    def check_a_zero_grad_of_the_program(self) -> None:
        """A program may set its gradients to zeros itself, as older versions of torch did."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(4):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
            square_loss(model, self.rank, step).backward()
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_equal(model, reference)

    def check_a_dtype_that_changes_after_the_first_step(self) -> None:
        if self.size == 1:
            return
        model = network(torch.float32)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer, range(1))
        model.double()
        self.expect_error("make a new Dist", self.train, model, optimizer, range(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer, range(3))
        self.expect_same_everywhere(model)

    def check_state_is_loaded_instead_of_a_step(self) -> None:
        """In two steps, all ranks load a state after backward() instead of calling step().

        The ranks above 0 are slow, so rank 0 waits for them in backward().
        """
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), groups=3)
        self.train(model, optimizer, [0])
        for number in (1, 2):
            if self.rank > 0:
                for _ in range(100):
                    torch.linalg.svdvals(torch.ones(60, 60))  # to be slow
            square_loss(model, self.rank, number).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad(set_to_none=False)
        self.train(model, optimizer, [3])
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, [0, 3])
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_warning_when_synchronized_twice(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum
        )
        square_loss(model, self.rank, 0).backward()
        optimizer.synchronize()
        optimizer.synchronize()  # the sum of sums would be too large
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        if self.size > 1:
            assert ["skip_synchronize" in str(w.message) for w in caught] == [True]
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1 * self.size)
        self.train_reference(reference, reference_optimizer, [0])
        self.expect_equal(model, reference)

    def check_closures(self) -> None:
        """LBFGS evaluates the closure several times in a step."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        )
        reference_optimizer = torch.optim.LBFGS(reference.parameters(), lr=0.1, max_iter=4)

        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = square_loss(model, self.rank, 0)
            loss.backward()
            return hvd.allreduce(loss.detach())

        def evaluate_reference() -> torch.Tensor:
            reference_optimizer.zero_grad()
            losses = [square_loss(reference, rank, 0) for rank in range(self.size)]
            loss = sum(losses[1:], losses[0]) / self.size
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(evaluate)
            reference_optimizer.step(evaluate_reference)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference, 1e-6)

    def check_schedulers_and_hooks(self) -> None:
        model, reference = network(), network()
        wrapped_optimizer, reference_optimizer = (
            torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)
        )
        # This schedule is made before the optimizer is wrapped.
        early_schedule = torch.optim.lr_scheduler.ExponentialLR(wrapped_optimizer, 0.9)
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer)
        assert isinstance(optimizer, torch.optim.SGD)
        assert type(optimizer).__name__ == "SGD"
        schedules = [
            early_schedule,
            torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
            torch.optim.lr_scheduler.ExponentialLR(reference_optimizer, 0.9),
            torch.optim.lr_scheduler.StepLR(reference_optimizer, 2, 0.5),
        ]
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        for step in range(6):
            self.train(model, optimizer, [step])
            self.train_reference(reference, reference_optimizer, [step])
            with warnings.catch_warnings():
                # `early_schedule` would warn, because `wrapped_optimizer` makes no step.
                warnings.simplefilter("ignore")
                for schedule in schedules:
                    schedule.step()
            if step == 2:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                assert optimizer.param_groups is wrapped_optimizer.param_groups
        assert len(calls) == 6
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_state_dict(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
        reference_optimizer = torch.optim.Adam(reference.parameters())
        self.train(model, optimizer, range(3))
        self.train_reference(reference, reference_optimizer, range(3))
        saved_state = copy.deepcopy(optimizer.state_dict())
        self.train(model, optimizer, range(2))
        model.load_state_dict(reference.state_dict())
        optimizer.load_state_dict(saved_state)
        self.train(model, optimizer, range(3, 6))
        self.train_reference(reference, reference_optimizer, range(3, 6))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_parameter_groups_added_later(self) -> None:
        model, reference = network(), network()
        optimizers = []
        for module in (model, reference):
            optimizers.append(torch.optim.SGD(module[0].parameters(), lr=0.1))
        optimizers[0] = hvd.DistributedOptimizer(optimizers[0])
        for module, optimizer in zip((model, reference), optimizers, strict=True):
            optimizer.add_param_group({"params": list(module[2:].parameters()), "lr": 0.2})
        self.train(model, optimizers[0], range(4))
        self.train_reference(reference, optimizers[1], range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_second_optimizer_takes_over_the_model(self) -> None:
        model = network()
        first_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, first_optimizer, range(2))
        second_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, second_optimizer, range(2, 4))
        reference = network()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_equal(model, reference)

    def check_wrong_use_raises(self) -> None:
        model = network()
        wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = list(model.named_parameters())
        wrap = hvd.DistributedOptimizer
        self.expect_error("occur twice", wrap, wrapped_optimizer, [("w", p) for _, p in names])
        self.expect_error("lacks 1", wrap, wrapped_optimizer, names[1:])
        self.expect_error("pairs", wrap, wrapped_optimizer, list(model.parameters()))
        self.expect_error("above 0", wrap, wrapped_optimizer, names, backward_passes_per_step=0)
        optimizer = wrap(wrapped_optimizer, names)
        self.expect_error("already", wrap, optimizer)
        if self.size == 1:
            return
        square_loss(model, self.rank, 0).backward()
        self.expect_error("backward_passes_per_step", square_loss(model, self.rank, 0).backward)
        # The failed backward() has added to gradients that were already combined.
        self.expect_error("were changed", optimizer.synchronize)
        optimizer.zero_grad()
        model[:2](batch(self.rank, 0)).square().mean().backward()
        self.expect_error("in flight", optimizer.zero_grad)
        self.expect_error("in flight", optimizer.set_backward_passes_per_step, 2)
        optimizer.step()
        self.train(model, optimizer, range(1))
        self.expect_same_everywhere(model)

    def check_a_mismatch_does_not_end_the_job(self) -> None:
        """Models of different shapes are an error on all ranks, and the job goes on."""
        if self.size == 1:
            return
        model = nn.Linear(5, 2 if self.rank else 300).double()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        text = self.expect_error("do not have the same", square_loss(model, 0, 0).backward)
        first_rank, other_ranks = (
            ("rank 0", "rank 1") if self.size == 2 else ("rank 0    ", "ranks 1, 2")
        )
        assert f"{first_rank}   number 0 of 2: `bias` (float64 [300])\n" in text
        assert f"{other_ranks}   number 0 of 2: `bias` (float64 [2])\n" in text
        optimizer.zero_grad()
        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))

    def check_parameters_are_paired_by_name(self) -> None:
        """The order of the parameters may differ by rank, for example if the program has built its
        parameter groups from a set."""
        for op, groups in ((hvd.Sum, 0), (hvd.Sum, 2), (hvd.Adasum, 0)):
            pairs = [(f"p{i}", nn.Parameter(torch.zeros(3))) for i in range(4)]
            own_order = pairs[self.rank % 4 :] + pairs[: self.rank % 4]
            wrapped_optimizer = torch.optim.SGD([parameter for _, parameter in own_order], lr=1.0)
            named_parameters = (
                pairs if groups else own_order[::-1]
            )  # this order decides which parameters are in a group
            optimizer = hvd.DistributedOptimizer(
                wrapped_optimizer, named_parameters, op=op, groups=groups
            )
            for step in range(3):
                optimizer.zero_grad()
                sum(p.sum() * 10**i for i, (_, p) in enumerate(pairs)).backward()
                optimizer.step()
                factor = (step + 1) * (self.size if op is hvd.Sum else 1)
                for i, (name, parameter) in enumerate(pairs):
                    expected = torch.full((3,), -float(factor * 10**i))
                    assert torch.equal(parameter.detach(), expected), (op, name, parameter)

    def expect_step_rejects_parameters(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]
    ) -> str:
        def step() -> None:
            sum(parameter.sum() for parameter in parameters).backward()
            optimizer.step()

        return self.expect_error("do not have the same parameters", step)

    def check_different_parameters_are_an_error(self) -> None:
        """Different parameters are an error, even if the parameters would fit into one bucket."""
        if self.size == 1:
            return
        is_last = self.rank == self.size - 1
        model_makers = (
            lambda: nn.Linear(3, 2 + is_last),
            lambda: nn.Linear(3 - is_last, 2),
            lambda: nn.Linear(3, 2, dtype=torch.float64 if is_last else torch.float32),
            lambda: nn.Linear(3, 2, bias=not is_last),
        )
        for make_model, op in itertools.product(model_makers, (hvd.Average, hvd.Adasum)):
            model = make_model()
            wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters(), op=op)
            weight_before = model.weight.detach().clone()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.expect_step_rejects_parameters(optimizer, model.parameters())
            if op is hvd.Average:
                assert torch.equal(model.weight.detach(), weight_before)
        names = [(f"{'b' if is_last else 'a'}{i}", nn.Parameter(torch.zeros(3))) for i in range(2)]
        wrapped_optimizer = torch.optim.SGD([parameter for _, parameter in names], lr=1.0)
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, names)
        text = self.expect_step_rejects_parameters(optimizer, [parameter for _, parameter in names])
        assert "`a0` (float32 [3])" in text and "`b0` (float32 [3])" in text
        model = nn.Linear(3, 2)
        wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        groups = [[model.weight, model.bias] if is_last else [model.weight]]
        optimizer = hvd.DistributedOptimizer(
            wrapped_optimizer, model.named_parameters(), groups=groups
        )
        text = self.expect_step_rejects_parameters(optimizer, model.parameters())
        assert "`bias` (float32 [2], in group 0)" in text
        assert "`bias` (float32 [2], in no group)" in text
        assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Max), torch.ones(2))

    def check_names_are_free_after_a_wrong_call(self) -> None:
        """A name becomes free when the wait for its call ends, even if the wait raises."""

        def start(name: str, scale: float = 1.0) -> list[Any]:
            return [
                hvd.allreduce_async(torch.ones(2), name=f"{name}.{i}", prescale_factor=scale)
                for i in range(3)
            ]

        def wait(handles: list[Any]) -> None:
            for handle in handles:
                hvd.synchronize(handle)

        own_scale = 1.0 if self.rank else float("inf")
        for _ in range(3):
            for handle in start("all", own_scale):
                self.expect_error("finite", hvd.synchronize, handle)
            wait(start("all"))
        self.expect_error("finite", wait, start("first", own_scale))
        hvd.barrier()  # completes the calls whose handles were dropped
        hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="first.0"))
        for i in (1, 2):
            self.expect_error("is in use", hvd.allreduce_async, torch.ones(2), name=f"first.{i}")
        # A grouped call waits for all its tensors, so all their names are free again.
        tensors = [torch.ones(2)] * 3
        for _ in range(2):
            options = {"name": "batch", "prescale_factor": own_scale}
            self.expect_error("finite", hvd.grouped_allreduce, tensors, **options)
        results = hvd.grouped_allreduce(tensors, name="batch")
        assert all(torch.equal(tensor, torch.ones(2)) for tensor in results)

    def check_a_job_of_one_has_no_hooks(self) -> None:
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        gradients = vars(optimizer).get("_gradients")
        assert isinstance(gradients, Gradients) == (self.size > 1)


class OptimizerFixture:
    """Functions of OptimizerChecks that other suites about optimizers use, too."""

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    expect_error = Conformance.expect_error
    api = TorchFrontend.api
    expect_same_everywhere = OptimizerChecks.expect_same_everywhere
    expect_equal = OptimizerChecks.expect_equal
    train_reference = OptimizerChecks.train_reference
    train = OptimizerChecks.train
