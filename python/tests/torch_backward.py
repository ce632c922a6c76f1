"""Checks that the gradients are the same on all ranks after backward().

A program may clip, unscale or overwrite these gradients as in one process. The checks compare with
a training in one process.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint
from torch_optimizer import OptimizerFixture, batch, network, square_loss

import farandole.torch as hvd


def convolutional_network() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 3)),
    )


def picture_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Return a loss over 3 + rank pictures."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    pictures = torch.randn(3 + rank, 1, 5, 5, generator=generator)
    return model(pictures.to(next(model.parameters()).dtype)).square().mean()


def run_with_checkpoints(
    model: nn.Sequential, value: torch.Tensor, reentrant: bool
) -> torch.Tensor:
    for layer in model[:4]:
        value = checkpoint(layer, value, use_reentrant=reentrant)
    return value


def run_with_nested_checkpoints(
    model: nn.Sequential, value: torch.Tensor, reentrant: bool
) -> torch.Tensor:
    def inner(value: torch.Tensor) -> torch.Tensor:
        return run_with_checkpoints(model, value, reentrant)

    return checkpoint(inner, value, use_reentrant=reentrant)


def branches() -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList(nn.Linear(5, 1) for _ in range(3)).double()


def branch_loss(
    model: nn.ModuleList, used_branches: Sequence[int], rank: int, step: int
) -> torch.Tensor:
    return sum(
        (model[i](batch(rank, step)).square().mean() for i in used_branches), torch.zeros(())
    )


def clip_before_steps(optimizer: torch.optim.Optimizer, norm: float) -> None:
    def clip(*_: object) -> None:
        clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], norm)

    optimizer.register_step_pre_hook(clip)


class BackwardChecks(OptimizerFixture):
    def mean_gradients(
        self, model: nn.Module, step: int, loss: Callable[..., torch.Tensor] = square_loss
    ) -> list[torch.Tensor]:
        copied_model = copy.deepcopy(model)
        copied_model.zero_grad()
        for rank in range(self.size):
            (loss(copied_model, rank, step) / self.size).backward()
        return [
            p.grad if p.grad is not None else torch.zeros_like(p) for p in copied_model.parameters()
        ]

    def expect_gradients(self, model: nn.Module, expected: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(model.parameters(), expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, value, rtol=1e-9, atol=1e-12)

    # The checks

    def check_backward_returns_combined_gradients(self) -> None:
        """The first step and later ones combine gradients in backward(), in buckets of any size."""
        for options in ({}, {"groups": 3}, {"groups": 100}, {"compression": hvd.Compression.none}):
            model = network()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
            )
            for step in range(4):
                optimizer.zero_grad(set_to_none=step != 2)
                expected = self.mean_gradients(model, step)
                square_loss(model, self.rank, step).backward()
                self.expect_gradients(model, expected)
                optimizer.zero_grad()  # allowed, because no gradient is in flight
                square_loss(model, self.rank, step).backward()
                self.expect_gradients(model, expected)
                optimizer.step()
            self.expect_same_everywhere(model)

    def check_three_ways_to_clip(self) -> None:
        """torch's version counter of a gradient does not count the writes of clip_by_value() and
        clip_by_numpy()."""

        def clip_by_norm(model: nn.Module) -> None:
            clip_grad_norm_(model.parameters(), 0.01)

        def clip_by_value(model: nn.Module) -> None:
            for parameter in model.parameters():
                parameter.grad.data.clamp_(-0.003, 0.003)

        def clip_by_numpy(model: nn.Module) -> None:
            for parameter in model.parameters():
                parameter.grad.numpy()[...] *= 0.25 if float(parameter.grad.sum()) > 0 else 0.5

        for clip in (clip_by_norm, clip_by_value, clip_by_numpy):
            model, reference = network(), network()
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=1.0)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1.0), groups=3
            )
            for step in range(4):
                optimizer.zero_grad()
                square_loss(model, self.rank, step).backward()
                clip(model)
                optimizer.step()
            reference_optimizer.register_step_pre_hook(
                lambda *_, clip=clip, module=reference: clip(module)
            )
            self.train_reference(reference, reference_optimizer, range(4))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_grad_scaler(self) -> None:
        """A scaler needs no synchronize(). If gradients of one rank overflow, all ranks skip that
        step."""
        for groups in (0, 4):
            model, reference = convolutional_network().double(), convolutional_network().double()
            inner, wrapped_optimizer = (
                torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
                for module in (model, reference)
            )
            optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), groups=groups)
            scaler, reference_scaler = (
                torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)
            )
            for step in range(6):

                def loss(module: nn.Module, rank: int, step_number: int = step) -> torch.Tensor:
                    overflows = step_number in (0, 3) and rank == self.size - 1
                    return picture_loss(module, rank, step_number) * (
                        float("inf") if overflows else 1.0
                    )

                optimizer.zero_grad()
                scaler.scale(loss(model, self.rank)).backward()
                scaler.step(optimizer)
                scaler.update()
                wrapped_optimizer.zero_grad()
                for rank in range(self.size):
                    reference_scaler.scale(loss(reference, rank) / self.size).backward()
                reference_scaler.step(wrapped_optimizer)
                reference_scaler.update()
                assert scaler.get_scale() == reference_scaler.get_scale(), step
                self.expect_same_everywhere(model)
            assert scaler.get_scale() == 2.0**8
            self.expect_equal(model, reference)

    def check_grad_scaler_as_with_horovod(self) -> None:
        model = network(torch.float32)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        reference = network(torch.float32)
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(square_loss(model, self.rank, step)).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1000.0)
            with warnings.catch_warnings(), optimizer.skip_synchronize():
                warnings.simplefilter("error")
                scaler.step(optimizer)
            scaler.update()
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference, 1e-5)

    def check_autocast(self) -> None:
        model, reference = convolutional_network(), convolutional_network()

        def loss(module: nn.Module, rank: int, step: int) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return picture_loss(module, rank, step)

        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss(model, self.rank, step).backward()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        clip_before_steps(reference_optimizer, 0.1)
        self.train_reference(reference, reference_optimizer, range(4), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference, 0.01)

    def check_torch_compile(self) -> None:
        model, reference = network(), network()
        compiled_model = torch.compile(model, backend="aot_eager")
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(4):
            optimizer.zero_grad()
            expected = self.mean_gradients(model, step)
            square_loss(compiled_model, self.rank, step).backward()
            self.expect_gradients(model, expected)
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_checkpoints(self) -> None:
        """A reentrant checkpoint runs another backward pass inside backward()."""
        for forward in (run_with_checkpoints, run_with_nested_checkpoints):
            for reentrant, has_head in itertools.product((True, False), repeat=2):
                self.expect_checkpoints_work(forward, reentrant, has_head)

    def expect_checkpoints_work(
        self, forward: Callable[..., torch.Tensor], reentrant: bool, has_head: bool
    ) -> None:
        """Train with checkpoints; with `has_head`, also train a last layer that is outside them."""

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            value = forward(model, batch(rank, step).requires_grad_(), reentrant)
            return (model[4](value) if has_head else value).square().mean()

        model, reference = network(), network()
        for module in (model, reference):
            module[4].requires_grad_(has_head)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), groups=100
        )
        for step in range(3):
            optimizer.zero_grad()
            expected = self.mean_gradients(model, step, loss)
            loss(model, self.rank, step).backward()
            self.expect_gradients(
                model if has_head else model[:4], expected[: 6 if has_head else 4]
            )
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(3), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_several_losses(self) -> None:
        """Several losses have different parameters. The backward() of each loss combines the
        gradients of this loss."""
        model, reference = branches(), branches()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(4):
            optimizer.zero_grad()
            order = [[0], [1, 2]] if step % 2 == 0 else [[1, 2], [0]]
            for used_branches in order:
                branch_loss(model, used_branches, self.rank, step).backward()
                for weight in [model[i].weight for i in used_branches] if step > 0 else ():
                    copies = hvd.allgather(weight.grad)
                    assert all(torch.equal(other[None], weight.grad) for other in copies)
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(
            reference,
            reference_optimizer,
            range(4),
            lambda m, rank, step: branch_loss(m, [0, 1, 2], rank, step),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_retain_graph_and_hooks_of_the_program(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for module in (model, reference):
            module[0].weight.register_hook(lambda gradient: gradient * 3)
        was_missing: list[bool] = []
        model[2].weight.register_post_accumulate_grad_hook(
            lambda parameter: was_missing.append(parameter.grad is None)
        )
        for step in range(3):
            optimizer.zero_grad()
            loss = square_loss(model, self.rank, step)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
        self.train_reference(
            reference,
            reference_optimizer,
            range(3),
            lambda m, rank, step: 2 * square_loss(m, rank, step),
        )
        assert was_missing == [False] * 6
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_parameter_that_one_rank_uses(self) -> None:
        """The program may make another call between backward() and step().

        Only rank 0 computes the gradient of the parameter, so no rank waits for it in backward():
        all ranks combine it in step().
        """
        model, reference = branches(), branches()

        def loss(module: nn.ModuleList, rank: int, step: int) -> torch.Tensor:
            return branch_loss(module, [0, 1] if rank == 0 else [0], rank, step)

        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(5):
            optimizer.zero_grad()
            own_loss = loss(model, self.rank, step)
            own_loss.backward()
            hvd.allreduce(own_loss.detach())
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(5), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)
        if self.size == 1:
            return
        # Before step(), the ranks have different gradients, so clipping would use different norms.
        optimizer.zero_grad()
        loss(model, self.rank, 5).backward()
        clip_grad_norm_(model.parameters(), 1e-3)
        text = self.expect_error("were changed", optimizer.step)
        assert "optimizer.synchronize() first" in text
        optimizer.zero_grad()
        loss(model, self.rank, 6).backward()
        optimizer.synchronize()
        clip_grad_norm_(model.parameters(), 1e-3)
        with optimizer.skip_synchronize():
            optimizer.step()

    def check_parameters_that_no_rank_uses(self) -> None:
        """If no rank uses a parameter, the program can still clip, unscale and discard the other
        gradients."""
        model, reference = branches(), branches()
        wrapped_optimizer, reference_optimizer = (
            torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)
        )
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for step in range(5):
            optimizer.zero_grad()
            factor = float("inf") if step == 3 and self.rank == 0 else 1.0
            scaler.scale(branch_loss(model, [0, 1], self.rank, step) * factor).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        clip_before_steps(reference_optimizer, 0.1)
        self.train_reference(
            reference,
            reference_optimizer,
            [0, 1, 2, 4],
            lambda m, r, step: branch_loss(m, [0, 1], r, step),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_branch_that_one_rank_leaves_out_later(self) -> None:
        """Rank 0 leaves out the branch, so it combines the branch's gradient in step().

        Until rank 0 calls step(), the other ranks wait in backward(). If rank 0 has written to
        gradients before its step(), all ranks raise the same error.
        """
        if self.size == 1:
            return

        def clip(model: nn.Module) -> None:
            clip_grad_norm_(model.parameters(), 1e-3)

        def scale(model: nn.Module) -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.numpy()[...] *= 0.5

        def loss(module: nn.ModuleList, rank: int, step: int) -> torch.Tensor:
            return branch_loss(module, [0, 1] if rank == 0 and step == 2 else [0, 1, 2], rank, step)

        for change_gradients in (clip, scale, None):
            model, reference = branches(), branches()
            wrapped_optimizer, reference_optimizer = (
                torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)
            )
            optimizer = hvd.DistributedOptimizer(
                wrapped_optimizer, model.named_parameters(), groups=[list(model[2].parameters())]
            )
            self.train(model, optimizer, range(2), loss)
            optimizer.zero_grad()
            backward = loss(model, self.rank, 2).backward
            if change_gradients is None:
                backward()
                optimizer.step()
                continue
            if self.rank == 0:
                backward()
                change_gradients(model)
            call = optimizer.step if self.rank == 0 else backward
            text = self.expect_error("begins with 1, 1 on a rank that has changed", call)
            assert "2.weight" in text or "2.bias" in text, text
            assert "optimizer.synchronize() first" in text, text
        self.train(model, optimizer, [3], loss)
        self.train_reference(reference, reference_optimizer, range(4), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_pass_that_was_not_declared(self) -> None:
        """A program makes two passes in a step, but has declared only one. The second pass would
        add to gradients that the first pass has combined, so the second pass must fail."""
        if self.size == 1:
            return
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(2):
            optimizer.zero_grad()
            square_loss(model, self.rank, step).backward()
            second_loss = square_loss(model, self.rank, step)
            text = self.expect_error("backward_passes_per_step", second_loss.backward)
            assert "no_sync()" in text and "requires_grad_(False)" in text, text
            optimizer.zero_grad()
            square_loss(model, self.rank, step).backward()
            with optimizer.no_sync():
                second_loss = square_loss(model, self.rank, step)
                self.expect_error("backward_passes_per_step", second_loss.backward)
            optimizer.zero_grad()
            self.train(model, optimizer, [step])
        self.expect_same_everywhere(model)

    def check_nested_no_sync(self) -> None:
        """The outer no_sync() stays in effect after the inner one ends."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                with optimizer.no_sync():
                    square_loss(model, self.rank, step).backward()
                square_loss(model, self.rank, step).backward()
            square_loss(model, self.rank, step).backward()
            optimizer.step()
        self.train_reference(
            reference,
            reference_optimizer,
            range(3),
            lambda m, rank, step: 3 * square_loss(m, rank, step),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_steps_after_an_error_within_skip_synchronize(self) -> None:
        """An error within skip_synchronize() ends this context. The next step combines gradients as
        usual."""
        model, reference = branches(), branches()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        try:
            with optimizer.skip_synchronize():
                raise KeyError("in the program")
        except KeyError:
            pass

        def loss(module: nn.ModuleList, rank: int, step: int) -> torch.Tensor:
            return branch_loss(module, [rank % 3], rank, step)  # step() combines these gradients

        for step in range(3):
            optimizer.zero_grad()
            loss(model, self.rank, step).backward()
            optimizer.step()
        self.train_reference(reference, reference_optimizer, range(3), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_skip_synchronize_while_gradients_are_in_flight(self) -> None:
        if self.size == 1:
            return
        model = branches()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        branch_loss(model, [self.rank % 3], self.rank, 0).backward()
        with optimizer.skip_synchronize():
            self.expect_error("call synchronize() before", optimizer.step)
        optimizer.step()
        self.expect_same_everywhere(model)

    def check_the_number_of_passes_is_set_before_each_step(self) -> None:
        """set_backward_passes_per_step() takes effect with the next pass."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=3
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for passes in (3, 1, 2, 1):
            optimizer.zero_grad()  # resets the count of passes, so it comes first
            optimizer.set_backward_passes_per_step(passes)
            expected = [passes * gradient for gradient in self.mean_gradients(model, passes)]
            for _ in range(passes):
                square_loss(model, self.rank, passes).backward()
            self.expect_gradients(model, expected)
            optimizer.step()
        self.train_reference(
            reference,
            reference_optimizer,
            (3, 1, 2, 1),
            lambda m, rank, n: n * square_loss(m, rank, n),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_an_error_of_the_program_in_backward(self) -> None:
        """A hook of the program raises an error, so backward() raises this error, too. If all ranks
        discard the gradients, training goes on."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), groups=100
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)

        def fail(gradient: torch.Tensor) -> None:
            raise KeyError("in a hook")

        for step in range(3):
            hook = model[0].bias.register_hook(fail)
            try:
                square_loss(model, self.rank, 7).backward()
            except KeyError:
                pass
            else:
                raise AssertionError("the hook has not run")
            hook.remove()
            optimizer.load_state_dict(optimizer.state_dict())
            self.train(model, optimizer, [step])
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_rank_that_leaves_during_backward(self) -> None:
        """A rank leaves the job, so backward() raises an error on the others. When all ranks have
        joined a new job, training goes on."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            self.train(model, optimizer, [step])
            self.train_reference(reference, reference_optimizer, [step])
            if self.rank > 0:
                hvd.shutdown()
            elif self.size > 1:
                loss = square_loss(model, self.rank, 7)
                try:
                    loss.backward()
                except hvd.GroupLostError:
                    pass
                else:
                    raise AssertionError("there is nobody to combine gradients with")
                hvd.shutdown()
                optimizer.load_state_dict(optimizer.state_dict())
            hvd.init()
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_two_optimizers_of_one_backward_pass(self) -> None:
        model, reference = network(), network()
        parts = lambda m: (list(m[0].parameters()), list(m[2:].parameters()))  # noqa: E731
        optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(p, lr=0.1)) for p in parts(model)]
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            expected = self.mean_gradients(model, step)
            square_loss(model, self.rank, step).backward()
            self.expect_gradients(model, expected)
            for optimizer in optimizers[:: -1 if step % 2 else 1]:
                optimizer.step()
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_sparse_gradients_are_combined(self) -> None:
        def build() -> nn.Module:
            torch.manual_seed(5)
            return nn.Embedding(20, 3, sparse=True).double()

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            return model(torch.tensor([rank, step, 3])).square().sum()

        model, reference = build(), build()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss(model, self.rank, step).backward()
            model.weight.grad._values().mul_(0.5)  # torch's version counter does not count this
            optimizer.step()
        half_loss = lambda m, rank, step: loss(m, rank, step) / 2  # noqa: E731
        self.train_reference(reference, reference_optimizer, range(4), half_loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)
