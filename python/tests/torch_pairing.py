"""Checks how the optimizers of different ranks are paired.

The cases: copies of models and optimizers, new jobs, several optimizers at once, and an optimizer
that only one rank has.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import pickle
import weakref

import torch
from torch import nn
from torch_optimizer import OptimizerFixture, network, square_loss

import farandole.torch as hvd


def one_layer(rows: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(5, rows).double()


def distributed_sgd(model: nn.Module, **options: object) -> torch.optim.Optimizer:
    wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters(), **options)


class PairingChecks(OptimizerFixture):
    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
        optimizer.zero_grad()
        square_loss(model, self.rank, number).backward()
        optimizer.step()

    def restart(self) -> None:
        hvd.shutdown()
        hvd.init()

    # The checks

    def check_copies_are_rejected(self) -> None:
        """An optimizer rejects copies of itself, because a copy would train without the other
        ranks."""
        for op in (hvd.Average, hvd.Adasum):
            model = network()
            optimizer = distributed_sgd(model, op=op)
            for make_copy in (
                lambda o=optimizer: copy.copy(o),
                lambda o=optimizer: copy.deepcopy(o),
                lambda o=optimizer, m=model: copy.deepcopy((m, o)),
                lambda o=optimizer: pickle.dumps(o),
            ):
                text = self.expect_error("make a new DistributedOptimizer", make_copy)
                assert "optimizer.state_dict()" in text

    def check_copies_of_the_model(self) -> None:
        """A program may copy a model to keep averaged weights, or to begin a new training."""
        model, reference = network(), network()
        optimizer = distributed_sgd(model)
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train(model, optimizer, range(2))
        averaged_model = copy.deepcopy(model)
        square_loss(averaged_model, self.rank, self.rank).backward()  # combines no gradients
        for averaged_parameter, parameter in zip(
            averaged_model.parameters(), model.parameters(), strict=True
        ):
            assert averaged_parameter.grad is not None and parameter.grad is not None
            assert averaged_parameter.grad.data_ptr() != parameter.grad.data_ptr()
        self.train(model, optimizer, range(2, 4))
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_equal(model, reference)
        copied_model = copy.deepcopy(model)
        second_optimizer = distributed_sgd(copied_model)
        second_optimizer.load_state_dict(optimizer.state_dict())
        self.train(copied_model, second_optimizer, range(4, 6))
        self.train_reference(reference, reference_optimizer, range(4, 6))
        self.expect_same_everywhere(copied_model)
        self.expect_equal(copied_model, reference)

    def check_another_optimizer_after_an_error(self) -> None:
        """The program keeps an error, whose traceback keeps the old optimizer alive. A new
        optimizer for the same parameters must work all the same."""
        if self.size == 1:
            return
        model, reference = network(), network()
        for in_a_new_job in (False, True):
            old_optimizer = distributed_sgd(model)
            model[0].weight.requires_grad_(self.rank != 1)
            try:
                square_loss(model, self.rank, 0).backward()
                old_optimizer.step()
            except hvd.CallError as error:
                kept_error = error
            model[0].weight.requires_grad_(True)
            old_optimizer.zero_grad()
            if in_a_new_job:
                hvd.shutdown()
                hvd.init()
            optimizer = distributed_sgd(model)
            self.train(model, optimizer, range(3))
            self.train_reference(
                reference, torch.optim.SGD(reference.parameters(), lr=0.1), range(3)
            )
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)
            square_loss(model, self.rank, 0).backward()
            self.expect_error("that was made later has parameters of this one", old_optimizer.step)
            optimizer.zero_grad()
            assert kept_error.__traceback__ is not None

    def check_an_error_keeps_no_optimizer(self) -> None:
        """An error keeps no optimizer alive, even if garbage collection is off."""
        if self.size == 1:
            return
        model = network()
        gc.collect()
        gc.disable()
        try:
            optimizer = distributed_sgd(model)
            gradients = weakref.ref(optimizer._gradients)
            model[0].weight.requires_grad_(self.rank != 1)
            with contextlib.suppress(hvd.CallError):
                square_loss(model, self.rank, 0).backward()
                optimizer.step()
            del optimizer
            assert gradients() is None
        finally:
            gc.enable()

    def check_old_and_new_optimizers_at_once(self) -> None:
        """In a new job, an optimizer of the old job and a new one have equal parameters, and
        gradients in flight at the same time."""
        old_model, new_model = network(), network()
        reference_old, reference_new = network(), network()
        old_optimizer = distributed_sgd(old_model)
        self.step(old_model, old_optimizer)
        self.restart()
        new_optimizer = distributed_sgd(new_model)
        unused_optimizer = distributed_sgd(one_layer(3, seed=1))  # makes no step
        for number in range(1, 4):
            losses = [
                square_loss(old_model, self.rank, number),
                5 * square_loss(new_model, self.rank, number),
            ]
            for optimizer in (old_optimizer, new_optimizer, unused_optimizer):
                optimizer.zero_grad()
            sum(losses).backward()
            old_optimizer.step()
            new_optimizer.step()
        for module, factor, numbers in (
            (reference_old, 1, range(4)),
            (reference_new, 5, range(1, 4)),
        ):
            self.train_reference(
                module,
                torch.optim.SGD(module.parameters(), lr=0.1),
                numbers,
                lambda m, rank, number, factor=factor: factor * square_loss(m, rank, number),
            )
        self.expect_same_everywhere(old_model)
        self.expect_equal(old_model, reference_old)
        self.expect_same_everywhere(new_model)
        self.expect_equal(new_model, reference_new)

    def check_a_new_member_joins_one_that_has_survived(self) -> None:
        """In a new job, rank 0 keeps its two trained optimizers, and the other ranks make new
        ones."""
        for op in (hvd.Average, hvd.Adasum):
            models = [network(), one_layer(3, seed=2)]
            optimizers = [distributed_sgd(model, op=op) for model in models]
            for model, optimizer in zip(models, optimizers, strict=True):
                self.step(model, optimizer)
            self.restart()
            if self.rank > 0:
                optimizers = [distributed_sgd(model, op=op) for model in models]
            for number in range(1, 4):
                for model, optimizer in zip(models[::-1], optimizers[::-1], strict=True):
                    self.step(model, optimizer, number)
            for model in models:
                self.expect_same_everywhere(model)

    def check_an_optimizer_of_one_rank_that_is_not_used(self) -> None:
        unused_optimizer = distributed_sgd(one_layer(3, seed=2)) if self.rank == 0 else None
        model, reference = network(), network()
        self.train(model, distributed_sgd(model), range(3))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_equal(model, reference)
        del unused_optimizer

    def check_an_optimizer_of_one_rank_and_another_order_are_errors(self) -> None:
        if self.size == 1:
            return
        for op, other_order in itertools.product((hvd.Average, hvd.Adasum), (False, True)):
            models = [one_layer(rows, seed=rows) for rows in (3, 4)]
            optimizers = [distributed_sgd(model, op=op) for model in models]
            index = self.rank % 2
            if not other_order and self.rank == 0:
                extra_layer = one_layer(2, seed=2)
                models.insert(0, extra_layer)
                optimizers.insert(0, distributed_sgd(extra_layer, op=op))
                index = 0
            elif not other_order:
                index = 0
            text = self.expect_error(
                "do not have the same parameters",
                lambda m=models, o=optimizers, i=index: self.step(m[i], o[i]),
            )
            assert "must use them in the same order" in text
            self.restart()

    def check_a_process_set_that_is_added_again(self) -> None:
        if self.size < 3:
            return
        group = hvd.add_process_set([0, 1])
        if self.rank > 1:
            hvd.remove_process_set(group)
            hvd.add_process_set(group)
            hvd.remove_process_set(group)
            return
        model, reference = network(), network()
        first_optimizer = distributed_sgd(model, process_set=group)
        self.step(model, first_optimizer)
        hvd.remove_process_set(group)
        hvd.add_process_set(group)
        other_model = network()
        second_optimizer = distributed_sgd(other_model, process_set=group)
        for number in range(1, 3):
            first_optimizer.zero_grad()
            second_optimizer.zero_grad()
            sum(square_loss(m, self.rank, number) for m in (model, other_model)).backward()
            first_optimizer.step()
            second_optimizer.step()
        self.size = group.size()
        self.train_reference(reference, torch.optim.SGD(reference.parameters(), lr=0.1), range(3))
        self.size = hvd.size()
        self.expect_equal(model, reference)
        hvd.remove_process_set(group)
