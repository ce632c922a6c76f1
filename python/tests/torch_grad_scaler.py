"""Checks that a GradScaler works as in one process, even if step() combines gradients that
backward() could not combine.

In all checks, the gradients of one rank overflow in some steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch_backward import branch_loss, branches
from torch_optimizer import Loss, OptimizerFixture
from torch_training import EmbeddingModel

import farandole.torch as hvd

BuildModel = Callable[[], nn.Module]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OVERFLOW_STEPS = (0, 3)


def uneven_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Only rank 0 uses the second branch, and no rank uses the third one."""
    return branch_loss(model, [0, 1] if rank == 0 else [0], rank, step)


def changing_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Rank 0 leaves out a branch in some steps."""
    return branch_loss(model, [0] if rank == 0 and step in (2, 3) else [0, 1, 2], rank, step)


def loss_without_a_batch(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Rank 0 computes no gradient in some steps."""
    weight = 0.0 if rank == 0 and step in (3, 4) else 1.0
    if weight == 0.0:
        return torch.zeros((), requires_grad=True)
    return branch_loss(model, [0, 1, 2], rank, step)


def sparse_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Rank 0 leaves out a table in some steps."""
    assert isinstance(model, EmbeddingModel)
    return model.loss(rank, step, uses_second_table=rank > 0 or step not in (2, 3))


def make_adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def make_fused_adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer whose own step() unscales the gradients, and does nothing if they
    overflow."""
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


class GradScalerChecks(OptimizerFixture):
    def overflowing(self, loss: Loss, rank: int) -> Loss:
        def overflowing_loss(model: nn.Module, of_rank: int, step: int) -> torch.Tensor:
            factor = float("inf") if of_rank == rank and step in OVERFLOW_STEPS else 1.0
            return loss(model, of_rank, step) * factor

        return overflowing_loss

    def compare_scaled(
        self,
        loss: Loss,
        make_optimizer: MakeOptimizer,
        make_context: Callable[
            [Any], contextlib.AbstractContextManager[None]
        ] = contextlib.nullcontext,
        unscales: bool = False,
    ) -> None:
        """Compare with one process. backward() runs within make_context(optimizer)."""
        model, reference = branches(), branches()
        reference_optimizer = make_optimizer(reference.parameters())
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model.parameters()), model.named_parameters()
        )
        scaler, reference_scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)
        )
        for step in range(6):
            optimizer.zero_grad()
            with make_context(optimizer):
                scaler.scale(loss(model, self.rank, step)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            reference_optimizer.zero_grad()
            for rank in range(self.size):
                reference_scaler.scale(loss(reference, rank, step) / self.size).backward()
            for parameter in reference.parameters():
                if parameter.grad is None and self.size > 1:
                    parameter.grad = torch.zeros_like(parameter)
            reference_scaler.step(reference_optimizer)
            reference_scaler.update()
            assert scaler.get_scale() == reference_scaler.get_scale(), step
            self.expect_same_everywhere(model)
        assert scaler.get_scale() == 2.0**8
        self.expect_equal(model, reference)

    def check_gradients_that_some_rank_lacks(self) -> None:
        for make_optimizer in (make_adam, make_fused_adam):
            self.compare_scaled(self.overflowing(uneven_loss, 0), make_optimizer)
            self.compare_scaled(self.overflowing(changing_loss, self.size - 1), make_optimizer)
            self.compare_scaled(self.overflowing(changing_loss, 0), make_optimizer)
            if self.size > 1:  # a single rank must have a gradient
                self.compare_scaled(
                    self.overflowing(loss_without_a_batch, self.size - 1), make_optimizer
                )

    def check_passes_within_no_sync(self) -> None:
        """The pass is within no_sync(), so step() combines all gradients. If unscale_() finds an
        overflow on one rank, all ranks must skip the step."""
        for make_optimizer in (make_adam, make_fused_adam):
            for unscales in (False, True):
                self.compare_scaled(
                    self.overflowing(uneven_loss, 0),
                    make_optimizer,
                    lambda o: o.no_sync(),
                    unscales,
                )

    def check_unscaling_on_one_rank(self) -> None:
        """A rank may unscale combined gradients, for example to log their norm."""
        model = branches()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        loss = self.overflowing(lambda m, r, step: branch_loss(m, [0, 1, 2], r, step), 0)
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(loss(model, self.rank, step)).backward()
            if self.rank == 0:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        self.expect_same_everywhere(model)
        assert scaler.get_scale() == 1.0

    def check_fewer_passes_than_declared(self) -> None:
        self.compare_scaled(
            self.overflowing(uneven_loss, self.size - 1), make_adam, self.declare_two
        )

    @contextlib.contextmanager
    def declare_two(self, optimizer: Any) -> Any:
        if optimizer.backward_passes_per_step == 1:
            optimizer.set_backward_passes_per_step(2)
        yield

    def check_unscaling_too_early_is_one_error(self) -> None:
        """Gradients that some rank has not computed are combined only in step(). If a program
        unscales or clips them before step(), all ranks get an error, even those that have computed
        them."""
        if self.size == 1:
            return
        for loss in (uneven_loss, changing_loss, loss_without_a_batch, sparse_loss):
            build_model: BuildModel = EmbeddingModel if loss is sparse_loss else branches
            self.expect_one_error(loss, build_model)
            self.expect_one_error(self.overflowing(loss, 0), build_model)
            self.expect_one_error(self.overflowing(loss, self.size - 1), build_model)

    def expect_one_error(self, loss: Loss, build_model: BuildModel) -> None:
        model = build_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        failed_step = -1
        for step in range(5):
            optimizer.zero_grad()
            try:
                scaler.scale(loss(model, self.rank, step)).backward()
                scaler.unscale_(optimizer)
                if build_model is branches:  # torch cannot clip sparse gradients
                    clip_grad_norm_(model.parameters(), 1e-3)
                scaler.step(optimizer)
            except hvd.CallError as error:
                assert "optimizer.synchronize() first" in str(error)
                assert "`with optimizer.skip_synchronize():`" in str(error)
                failed_step = step
                break
            scaler.update()
        assert failed_step >= 0
        assert (hvd.allgather(torch.tensor([failed_step])) == failed_step).all()
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(6):  # this loop does what the text of the error advises
            optimizer.zero_grad()
            scaler.scale(loss(model, self.rank, step)).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        self.expect_same_everywhere(model)

    def check_scales_that_differ_become_equal(self) -> None:
        """One rank sets a scale that differs from that of the others. All ranks then skip one step
        of both optimizers, and afterwards have the same scale."""
        for make_optimizer in (make_adam, make_fused_adam):
            models = [branches(), branches()]
            optimizers: list[Any] = [
                hvd.DistributedOptimizer(make_optimizer(model.parameters())) for model in models
            ]
            scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
            for step in range(4):
                values_before = [
                    [p.detach().clone() for p in model.parameters()] for model in models
                ]
                for model, optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    scaler.scale(branch_loss(model, [0, 1, 2], self.rank, step)).backward()
                    scaler.step(optimizer)
                scaler.update(4.0 if step == 1 and self.rank == 0 else None)
                for model, values in zip(models, values_before, strict=True):
                    is_unchanged = all(map(torch.equal, model.parameters(), values))
                    assert is_unchanged is (step == 2 and self.size > 1), (step, is_unchanged)
                    self.expect_same_everywhere(model)
                if step > 1 and self.size > 1:
                    assert scaler.get_scale() == 2.0, scaler.get_scale()

    def check_other_readers_of_the_attribute(self) -> None:
        """When GradScaler.step() reads the attribute _step_supports_amp_scaling, the optimizer
        combines the gradients. When other code reads this attribute, the optimizer must not combine
        them."""
        model = branches()
        for make_optimizer, expected in ((make_adam, False), (make_fused_adam, True)):
            optimizer: Any = hvd.DistributedOptimizer(make_optimizer(model.parameters()))
            for step in range(2):
                optimizer.zero_grad()
                uneven_loss(model, self.rank, step).backward()
                if self.rank == 0:
                    assert optimizer._step_supports_amp_scaling is expected
                optimizer.step()
            optimizer._step_supports_amp_scaling = not expected
            assert optimizer._step_supports_amp_scaling is not expected
        self.expect_same_everywhere(model)
