"""Checks of steps that fail or are left out, and of programs that call step() or load_state_dict()
in unusual places. Either training goes on, or all ranks get an error."""

from __future__ import annotations

import copy
import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_optimizer import OptimizerFixture, network, square_loss

import farandole.torch as hvd


def sgd(model: nn.Module, **options: Any) -> Any:
    wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    return hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters(), **options)


def fail_once(optimizer: torch.optim.Optimizer) -> None:
    """Let the next step() of the optimizer raise a KeyError before it changes parameters."""

    def fail(*_: object) -> None:
        handle.remove()
        raise KeyError("in a hook")

    handle = optimizer.register_step_pre_hook(fail)


def ignore_key_error(call: Callable[[], object]) -> None:
    try:
        call()
    except KeyError:
        return
    raise AssertionError("the hook has not run")


class FailedStepChecks(OptimizerFixture):
    def step_in_some_way(self, model: nn.Module, optimizer: Any, step: int, method: str) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = square_loss(model, self.rank, step)
            loss.backward()
            return loss

        if method == "closure":
            optimizer.step(closure)
            return
        closure()
        if method == "step":
            optimizer.step()
            return
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    def check_a_step_that_fails_on_one_rank(self) -> None:
        """One rank has missed an update, because its step failed. So all ranks get an error in
        their next pass."""
        if self.size == 1:
            return
        for method in ("step", "closure", "skip_synchronize"):
            model = network()
            optimizer = sgd(model)

            def program(
                model: nn.Module = model, optimizer: Any = optimizer, method: str = method
            ) -> None:
                for step in range(3):
                    if step == 1 and self.rank == self.size - 1:
                        fail_once(optimizer)
                        ignore_key_error(
                            lambda: self.step_in_some_way(model, optimizer, step, method)  # noqa: B023
                        )
                    else:
                        self.step_in_some_way(model, optimizer, step, method)

            self.expect_error("must make or skip the same steps", program)
            optimizer.zero_grad()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            self.train(model, optimizer, range(3))
            self.expect_same_everywhere(model)

    def check_a_step_that_is_repeated_uses_the_same_sums(self) -> None:
        """The step fails on one rank or on all ranks. These ranks repeat the step immediately, with
        the gradients that are already combined."""
        for rank in (0, None):
            model, reference = network(), network()
            wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer: Any = hvd.DistributedOptimizer(wrapped_optimizer, op=hvd.Sum)
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1 * self.size)
            for step in range(3):
                optimizer.zero_grad()
                square_loss(model, self.rank, step).backward()
                if rank in (self.rank, None):
                    fail_once(optimizer)
                    ignore_key_error(optimizer.step)
                optimizer.step()
            self.train_reference(reference, reference_optimizer, range(3))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_a_step_that_fails_on_all_ranks(self) -> None:
        """The program either leaves out a step that has failed, or repeats it. In both cases,
        training has the same result as in one process."""
        for method in ("step", "closure", "skip_synchronize"):
            model, reference = network(), network()
            optimizer, reference_optimizer = (
                sgd(model),
                torch.optim.SGD(reference.parameters(), 0.1, 0.5),
            )
            for step in range(4):
                if step == 1:
                    fail_once(optimizer)
                    ignore_key_error(
                        lambda: self.step_in_some_way(model, optimizer, 9, method)  # noqa: B023
                    )
                if step == 2 and method == "step":
                    fail_once(optimizer)
                    ignore_key_error(
                        lambda: self.step_in_some_way(model, optimizer, 2, method)  # noqa: B023
                    )
                    optimizer.step()
                else:
                    self.step_in_some_way(model, optimizer, step, method)
            self.train_reference(reference, reference_optimizer, range(4))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_a_failed_step_of_own_gradients(self) -> None:
        """The failed step was within skip_synchronize(), so it would have used the gradients of
        this rank alone. The repeated step combines the gradients."""
        model, reference = network(), network()
        optimizer, reference_optimizer = (
            sgd(model),
            torch.optim.SGD(reference.parameters(), 0.1, 0.5),
        )
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                square_loss(model, self.rank, step).backward()
            fail_once(optimizer)
            with optimizer.skip_synchronize():
                ignore_key_error(optimizer.step)
            optimizer.step()
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_an_adasum_step_that_fails_leaves_the_parameters(self) -> None:
        model = network()
        optimizer = sgd(model, op=hvd.Adasum)
        self.train(model, optimizer, [0])
        model_before = copy.deepcopy(model)

        def fail(*_: object) -> None:
            handle.remove()
            raise KeyError("in a hook")

        handle = optimizer.register_step_post_hook(fail)
        square_loss(model, self.rank, 1).backward()
        if self.size > 1:
            ignore_key_error(optimizer.step)
            self.expect_equal(model, model_before, tolerance=0)

    def check_optimizers_that_step_within_backward(self) -> None:
        """Each parameter has an optimizer of its own. A hook calls step() of the parameter's
        optimizer as soon as the gradient is complete, so that the program can free the gradient's
        memory."""
        model, reference = network(), network()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        optimizers = {}
        for name, parameter in model.named_parameters():
            wrapped_optimizer = torch.optim.SGD([parameter], lr=0.1)
            optimizers[parameter] = hvd.DistributedOptimizer(wrapped_optimizer, [(name, parameter)])

        def step_now(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_now)
        for step in range(4):
            square_loss(model, self.rank, step).backward()
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_an_optimizer_that_steps_in_the_last_hook(self) -> None:
        model, reference = network(), network()
        optimizer, reference_optimizer = (
            sgd(model),
            torch.optim.SGD(reference.parameters(), 0.1, 0.5),
        )

        last_parameters = [*model[0].parameters()]
        counted: list[torch.Tensor] = []

        def count(parameter: torch.Tensor) -> None:
            counted.append(parameter)
            if len(counted) % len(last_parameters) == 0:
                optimizer.step()
                optimizer.zero_grad()

        for parameter in last_parameters:
            parameter.register_post_accumulate_grad_hook(count)
        for step in range(4):
            square_loss(model, self.rank, step).backward()
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_two_threads_that_train_at_the_same_time(self) -> None:
        """The pass of the first thread ends while the pass of the second one is running."""
        first_model, second_model = network(), network()
        optimizers = [sgd(first_model), sgd(second_model)]
        references = network(), network()
        for reference in references:
            reference_optimizer = torch.optim.SGD(reference.parameters(), 0.1, 0.5)
            self.train_reference(reference, reference_optimizer, range(2))
        for step in range(2):
            is_half_done, may_go_on = threading.Event(), threading.Event()

            def pause(
                *_: object, own_event: Any = is_half_done, other_event: Any = may_go_on
            ) -> None:
                own_event.set()
                other_event.wait(60)

            hook = second_model[1].register_full_backward_hook(pause)
            thread = threading.Thread(target=square_loss(second_model, self.rank, step).backward)
            thread.start()
            assert is_half_done.wait(60)
            square_loss(first_model, self.rank, step).backward()
            may_go_on.set()
            thread.join()
            hook.remove()
            for model, optimizer in zip((first_model, second_model), optimizers, strict=True):
                for parameter in model.parameters():  # backward() has combined all gradients
                    copies = hvd.allgather(parameter.grad[None])
                    assert all(torch.equal(other, parameter.grad) for other in copies), step
                optimizer.step()
                optimizer.zero_grad()
        for model, reference in zip((first_model, second_model), references, strict=True):
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_a_state_is_loaded_before_the_step(self) -> None:
        """After a program has loaded a state, step() must not combine the gradients a second time,
        because they would then be too large. In a broadcast, only some ranks load a state."""

        def load(optimizer: Any) -> None:
            optimizer.load_state_dict(optimizer.state_dict())

        def broadcast(optimizer: Any) -> None:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)

        def set_passes(optimizer: Any) -> None:
            optimizer.set_backward_passes_per_step(1)

        for change_gradients, groups, synchronizes in itertools.product(
            (load, broadcast, set_passes), (None, 100), (False, True)
        ):
            model, reference = network(), network()
            optimizer = sgd(model, op=hvd.Sum, groups=groups)
            reference_optimizer = torch.optim.SGD(reference.parameters(), 0.1 * self.size, 0.5)
            for step in range(3):
                optimizer.zero_grad()
                square_loss(model, self.rank, step).backward()
                if synchronizes:
                    optimizer.synchronize()
                change_gradients(optimizer)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # ignores the warning
                    optimizer.step()
            self.train_reference(reference, reference_optimizer, range(3))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_the_number_of_passes_changes_before_the_step(self) -> None:
        model, reference = network(), network()
        optimizer, reference_optimizer = (
            sgd(model),
            torch.optim.SGD(reference.parameters(), 0.1, 0.5),
        )
        for step in range(4):
            for _ in range(1 + step % 2):
                square_loss(model, self.rank, step).backward()
            optimizer.set_backward_passes_per_step(2 - step % 2)
            optimizer.step()
            optimizer.zero_grad()
        self.train_reference(
            reference,
            reference_optimizer,
            range(4),
            lambda m, rank, n: (1 + n % 2) * square_loss(m, rank, n),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)
