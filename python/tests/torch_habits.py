"""Checks unusual things that programs do between backward() and step(), or with an optimizer.

docs/training.md has a table of these things. Each of these things works as in one process, or
raises an error.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch_optimizer import OptimizerFixture, batch, network, square_loss

import farandole.torch as hvd


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)


def set_gradients_to_none(model: nn.Module, _: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def set_gradients_to_zeros(model: nn.Module, _: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.zero_()  # type: ignore[union-attr]


def zero_grad_of_model(model: nn.Module, _: Any) -> None:
    model.zero_grad()


def zero_grad_of_optimizer(_: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()


class OwnZeroGradOptimizer(torch.optim.SGD):
    """An optimizer of a program, whose zero_grad() takes no argument."""

    def zero_grad(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None


class Sam:
    """Sharpness-aware minimization, as its users write it: a second pass at perturbed weights."""

    def __init__(self, optimizer: torch.optim.Optimizer, distance: float = 0.05) -> None:
        self.optimizer, self.distance = optimizer, distance
        self.parameters = optimizer.param_groups[0]["params"]

    @torch.no_grad()
    def perturb(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        self.moves = [p.grad * (self.distance / norm) for p in self.parameters]
        for parameter, move in zip(self.parameters, self.moves, strict=True):
            parameter.add_(move)
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        for parameter, move in zip(self.parameters, self.moves, strict=True):
            parameter.sub_(move)
        self.optimizer.step()


# What a random program can do in one step: see run_program().
ACTIONS = ("plain", "skip", "accumulate", "clip", "perturb", "load", "freeze", "empty")


class HabitChecks(OptimizerFixture):
    def distributed(self, model: nn.Module, **options: Any) -> Any:
        return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)

    def run_own_pass(self, model: nn.Module, step: int) -> None:
        square_loss(model, self.rank, step).backward()

    def run_pass_of_all(self, model: nn.Module, step: int) -> None:
        for rank in range(self.size):
            (square_loss(model, rank, step) / self.size).backward()

    def compare_programs(self, program: Callable[..., None], **options: Any) -> None:
        """Run program(model, optimizer, run_pass) on all ranks and in one process, and compare."""
        model, reference = network(), network()
        program(model, self.distributed(model, **options), self.run_own_pass)
        program(reference, sgd(reference), self.run_pass_of_all)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def expect_same_error(self, text: str, program: Callable[[], None]) -> str:
        """Expect the same CallError on all ranks."""
        error_text = self.expect_error(text, program)
        assert set(hvd.allgather_object(error_text)) == {error_text}
        return error_text

    # What works

    def check_skipped_steps(self) -> None:
        """If all ranks skip a step, they may drop the gradients in any way."""

        for drop_gradients in (
            set_gradients_to_none,
            set_gradients_to_zeros,
            zero_grad_of_model,
            zero_grad_of_optimizer,
        ):

            def program(
                model: nn.Module,
                optimizer: Any,
                run_pass: Any,
                drop_gradients: Any = drop_gradients,
            ) -> None:
                for step in range(8):
                    run_pass(model, step)
                    if step not in (1, 4, 5):
                        optimizer.step()
                    drop_gradients(model, optimizer)

            for groups in (None, 3):
                self.compare_programs(program, groups=groups)

    def check_a_perturbed_pass(self) -> None:
        def program(model: nn.Module, optimizer: Any, run_pass: Any) -> None:
            sam = Sam(optimizer)
            for step in range(5):
                run_pass(model, step)
                sam.perturb()
                run_pass(model, step)
                sam.step()
                optimizer.zero_grad()

        for groups in (None, 3):
            self.compare_programs(program, groups=groups)

    def check_a_line_search(self) -> None:
        """LBFGS chooses its steps by the loss, so all ranks must see the same loss. The closure may
        combine the gradients itself."""

        def train(model: nn.Module, optimizer: Any, loss_of: Any, synchronizes: bool) -> None:
            for step in range(3):

                def closure(step_number: int = step) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = loss_of(model, step_number)
                    loss.backward()
                    if synchronizes:
                        optimizer.synchronize()
                    return loss

                with optimizer.skip_synchronize() if synchronizes else contextlib.nullcontext():
                    loss = optimizer.step(closure)
                assert loss.dtype == torch.float64

        def lbfgs(model: nn.Module) -> torch.optim.LBFGS:
            options = {"lr": 1, "max_iter": 5, "line_search_fn": "strong_wolfe"}
            return torch.optim.LBFGS(model.parameters(), **options)

        def mean_loss(model: nn.Module, step: int) -> torch.Tensor:
            losses = [square_loss(model, rank, step) for rank in range(self.size)]
            return torch.stack(losses).mean()

        reference = network()
        train(reference, lbfgs(reference), mean_loss, False)
        for synchronizes in (False, True):
            model = network()
            optimizer = hvd.DistributedOptimizer(lbfgs(model), model.named_parameters())
            train(model, optimizer, lambda m, step: square_loss(m, self.rank, step), synchronizes)
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference, 1e-6)  # line searches amplify rounding differences

    def check_a_closure_that_synchronizes(self) -> None:
        """Gradients that the closure itself combines are not combined a second time."""
        model, reference = network(), network()
        optimizer = self.distributed(model, op=hvd.Sum)
        reference_optimizer = sgd(reference)
        for step in range(3):

            def closure(step_number: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = square_loss(model, self.rank, step_number) / self.size
                loss.backward()
                optimizer.synchronize()
                return loss

            optimizer.step(closure)
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_zero_grad_without_arguments(self) -> None:
        model, reference = network(), network()
        wrapped_optimizer, reference_optimizer = (
            OwnZeroGradOptimizer(m.parameters(), lr=0.1) for m in (model, reference)
        )
        optimizer: Any = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            self.run_own_pass(model, step)
            optimizer.step()
        self.train_reference(reference, reference_optimizer, range(3))
        self.expect_equal(model, reference)

    def check_a_leftover_pass(self) -> None:
        """A pass after the last step of an epoch is dropped by zero_grad()."""

        def program(model: nn.Module, optimizer: Any, run_pass: Any) -> None:
            for step in range(10):
                if step in (0, 5):  # an epoch has steps of two, two and one pass
                    optimizer.zero_grad()
                run_pass(model, step)
                if step % 5 in (1, 3):
                    optimizer.step()
                    optimizer.zero_grad()

        self.compare_programs(program, backward_passes_per_step=2)

    def check_layers_that_each_rank_drops(self) -> None:
        """The first step uses all layers. Then each rank leaves out one layer, a different one in
        each step."""
        if self.size == 1:  # a gradient that no rank has stays None
            return

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            layers = list(model)  # type: ignore[call-overload]
            if step > 0:
                del layers[2 if (rank + step) % 2 else 1]
            value = batch(rank, step)
            for layer in layers:
                value = torch.tanh(layer(value))
            return value.square().mean()

        torch.manual_seed(9)
        model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4))).double()
        reference = copy.deepcopy(model)
        optimizer = self.distributed(model, groups=100)
        for step in range(5):
            optimizer.zero_grad()
            with optimizer.no_sync():
                loss(model, self.rank, step).backward()
            optimizer.step()
        self.train_reference(reference, sgd(reference), range(5), loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_gradients_that_are_zero(self) -> None:
        """Combined gradients that are zero do not count as dropped gradients."""

        def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
            first_layer, second_layer = model.children()
            value = 0 * first_layer(batch(rank, step)).sum()
            return value + (second_layer(batch(rank, step)).square().mean() if rank == 0 else 0)

        for groups in (None, 10):
            torch.manual_seed(3)
            model = nn.ModuleList(nn.Linear(5, 1) for _ in range(2)).double()
            reference = copy.deepcopy(model)
            self.train(model, self.distributed(model, groups=groups), range(4), loss)
            self.train_reference(reference, sgd(reference), range(4), loss)
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_clipping_in_the_step_of_an_unfreeze(self) -> None:
        """The first backward() after an unfreeze combines the gradients of the unfrozen layers,
        too, so the program can clip all of them."""

        def train(
            model: nn.Module, optimizer: Any, run_pass: Any, last_layers: Sequence[int]
        ) -> None:
            for step in range(4):
                if step == 2:
                    for number in (0, 2, 4):
                        model[number].requires_grad_(number in last_layers)  # type: ignore[operator]
                optimizer.zero_grad()
                run_pass(model, step)
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()

        # In each case: the layers that are trained in the first two steps, and the layers that are
        # trained in the last two. In the last case, the model is frozen only while the optimizer is
        # made.
        for first_layers, last_layers in (
            ((4,), (0, 2, 4)),
            ((4,), (0, 2)),
            ((2, 4), (0, 4)),
            ((), (0, 2, 4)),
        ):
            models = network(), network()
            for model in models:
                for number in {0, 2, 4}.difference(first_layers):
                    model[number].requires_grad_(False)
            optimizers = self.distributed(models[0]), sgd(models[1])
            for model in models if not first_layers else ():
                model.requires_grad_(True)
            train(models[0], optimizers[0], self.run_own_pass, last_layers)
            train(models[1], optimizers[1], self.run_pass_of_all, last_layers)
            self.expect_same_everywhere(models[0])
            self.expect_equal(*models)

    def check_a_frozen_parameter_that_cannot_be_trained(self) -> None:
        """torch allows no hook on a parameter that cannot be trained."""
        model = network()
        integer_parameter = nn.Parameter(torch.arange(3), requires_grad=False)
        with torch.inference_mode():
            float_parameter = nn.Parameter(torch.ones(2), requires_grad=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([*model.parameters(), integer_parameter, float_parameter], lr=0.1)
        )
        self.train(model, optimizer, range(2))
        self.expect_same_everywhere(model)
        assert not integer_parameter.requires_grad and not float_parameter.requires_grad

    def check_a_loop_of_two_networks(self) -> None:
        """A GAN: the generator's pass goes through the discriminator."""
        for method in ("no_sync", "requires_grad_"):
            networks = [nn.Linear(5, 5).double(), nn.Linear(5, 1).double()]
            for module in networks:
                hvd.broadcast_parameters(module.state_dict(), root_rank=0)
            copied_networks = copy.deepcopy(networks)

            def train(
                pair: list[nn.Module], optimizers: list[Any], ranks: list[int], method: str = method
            ) -> None:
                (generator, judge), (generator_optimizer, judge_optimizer) = pair, optimizers
                for step in range(4):
                    judge_optimizer.zero_grad()
                    for rank in ranks:
                        generated = generator(batch(rank, step)).detach()
                        loss = (judge(generated) - judge(batch(rank, step + 50))).square().mean()
                        (loss / len(ranks)).backward()
                    judge_optimizer.step()
                    generator_optimizer.zero_grad()
                    judge.requires_grad_(method != "requires_grad_")
                    for rank in ranks:
                        context = (
                            judge_optimizer.no_sync()
                            if method == "no_sync" and judge_optimizer.syncs
                            else contextlib.nullcontext()
                        )
                        with context:
                            generated = judge(generator(batch(rank, step)))
                            (generated.square().mean() / len(ranks)).backward()
                    generator_optimizer.step()
                    judge.requires_grad_(True)

            optimizers = [self.distributed(module) for module in networks]
            wrapped_optimizer: list[Any] = [sgd(module) for module in copied_networks]
            for optimizer, syncs in [(o, True) for o in optimizers] + [
                (o, False) for o in wrapped_optimizer
            ]:
                optimizer.syncs = syncs
            train(networks, optimizers, [self.rank])
            train(copied_networks, wrapped_optimizer, list(range(self.size)))
            for network_, copied_network in zip(networks, copied_networks, strict=True):
                self.expect_same_everywhere(network_)
                self.expect_equal(network_, copied_network)

    def check_random_programs(self) -> None:
        """If all ranks run the same program, the result is the same as in one process."""
        for seed in range(int(os.environ.get("FARANDOLE_TEST_PROGRAMS", "12"))):
            generator = random.Random(seed)
            groups = generator.choice([None, None, 1, 3, 100])
            steps = [generator.choice(ACTIONS) for _ in range(14)]
            model, reference = network(), network()
            self.run_program(seed, steps, model, self.distributed(model, groups=groups), self.rank)
            self.run_program(seed, steps, reference, sgd(reference), None)
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def run_program(
        self, seed: int, actions: list[str], model: nn.Module, optimizer: Any, rank: int | None
    ) -> None:
        """Run the steps of a program with the batches of one rank or, if `rank` is None, of all
        ranks. Before a rank changes or drops gradients that some rank lacks, it must call
        synchronize()."""
        generator = random.Random(seed)
        layers = [model[0], model[2], model[4]]

        def run_pass(step: int, factor: float = 1.0, rank_left_out: int = -1) -> None:
            for batch_rank in range(self.size) if rank is None else [rank]:
                if batch_rank != rank_left_out:
                    loss = square_loss(model, batch_rank, step) * factor
                    (loss / self.size if rank is None else loss).backward()

        for step, action in enumerate(actions):
            drop_gradients = generator.choice([optimizer.zero_grad, model.zero_grad])
            number = generator.randrange(len(layers))
            rank_without_batch = generator.randrange(self.size)
            if action == "freeze":
                layers[number].requires_grad_(not layers[number].weight.requires_grad)
                if not any(p.requires_grad for p in model.parameters()):
                    layers[number].requires_grad_(True)
            if action == "accumulate":
                with optimizer.no_sync() if rank is not None else contextlib.nullcontext():
                    run_pass(step + 100, 0.5)
            synchronizes = "empty" in actions and rank is not None
            if action == "perturb":
                run_pass(step + 200)
                if synchronizes:
                    optimizer.synchronize()
                drop_gradients()
            run_pass(step, 1.0, rank_without_batch if action == "empty" and self.size > 1 else -1)
            synchronizes = rank is not None and (synchronizes or action == "clip")
            if synchronizes:
                optimizer.synchronize()
            if action == "clip":
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            if action == "load":
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if action != "skip":
                with optimizer.skip_synchronize() if synchronizes else contextlib.nullcontext():
                    optimizer.step()
            drop_gradients()

    # What raises an error

    def check_steps_that_not_all_ranks_make(self) -> None:
        """If some ranks skip a step, the next pass fails on all ranks. Then they can go on."""
        if self.size == 1:
            return
        for seed in range(8):
            generator = random.Random(seed)
            model = network()
            optimizer = self.distributed(model, groups=generator.choice([None, 1, 3]))
            # If the first step is skipped, the other ranks wait in the check of the parameters.
            skipped_step, skipping_rank = generator.randrange(1, 4), generator.randrange(self.size)
            skips = (self.rank == skipping_rank) == generator.choice([True, False])
            drop_gradients = generator.choice(
                [
                    set_gradients_to_none,
                    set_gradients_to_zeros,
                    zero_grad_of_model,
                    zero_grad_of_optimizer,
                ]
            )

            def program() -> None:
                for step in range(skipped_step + 2):  # noqa: B023
                    self.run_own_pass(model, step)  # noqa: B023
                    if step != skipped_step or not skips:  # noqa: B023
                        optimizer.step()  # noqa: B023
                    drop_gradients(model, optimizer)  # noqa: B023

            text = self.expect_same_error("must make or skip the same steps", program)
            assert f"rank {skipping_rank}" in text, text
            optimizer.zero_grad()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            self.train(model, optimizer, range(3))
            self.expect_same_everywhere(model)

    def check_sparse_gradients_that_one_rank_sets_to_zeros(self) -> None:
        if self.size == 1:
            return
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Linear(3, 2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def program() -> None:
            for step in range(4):
                model(torch.tensor([step, 3])).square().mean().backward()
                if step == 2 and self.rank == 0:
                    set_gradients_to_zeros(model, None)
                optimizer.step()
                optimizer.zero_grad()

        self.expect_same_error("must make or skip the same steps", program)

    def check_steps_with_sparse_gradients_that_not_all_ranks_make(self) -> None:
        if self.size == 1:
            return
        torch.manual_seed(1)
        table = nn.Embedding(7, 3, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1))

        def program() -> None:
            for step in range(3):
                table(torch.tensor([step, 3])).square().mean().backward()
                if step != 1 or self.rank > 0:
                    optimizer.step()
                optimizer.zero_grad()

        self.expect_same_error("must make or skip the same steps", program)
        optimizer.zero_grad()

    def check_gradients_that_one_rank_drops_before_its_step(self) -> None:
        if self.size == 1:
            return
        for drop_gradients in (
            set_gradients_to_none,
            set_gradients_to_zeros,
            zero_grad_of_model,
            zero_grad_of_optimizer,
        ):
            model = network()
            optimizer = self.distributed(model)

            def program() -> None:
                for step in range(3):
                    self.run_own_pass(model, step)  # noqa: B023
                    if step == 1 and self.rank == 0:
                        drop_gradients(model, optimizer)  # noqa: B023
                    optimizer.step()  # noqa: B023

            self.expect_same_error("must make or skip the same steps", program)

    def check_parameters_that_one_rank_freezes(self) -> None:
        if self.size == 1:
            return
        model = network()
        optimizer = self.distributed(model)
        is_last_rank = self.rank == self.size - 1
        # One rank alone freezes, the ranks freeze different layers, or one rank freezes one more
        # layer.
        for frozen_layers in (
            [0] if is_last_rank else [],
            [0] if is_last_rank else [2],
            [0, 2] if is_last_rank else [0],
        ):
            self.train(model, optimizer, range(2))
            for number in frozen_layers:
                model[number].bias.requires_grad_(False)
            program = functools.partial(self.train, model, optimizer, [2])
            self.expect_same_error("freeze the same parameters", program)
            model.requires_grad_(True)
        self.train(model, optimizer, range(3))
        self.expect_same_everywhere(model)

    def check_optimizers_that_differ(self) -> None:
        """The error of the parameter check shows that the classes, or the options, differ."""
        if self.size == 1:
            return
        makers: list[Callable[[nn.Module], torch.optim.Optimizer]] = [
            lambda model: (torch.optim.Adam if self.rank else torch.optim.SGD)(model.parameters()),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.25 * (1 + self.rank)),
        ]
        for make_optimizer, options in zip(makers, ("Adam(lr=0.001", "SGD(lr=0.25"), strict=True):
            model = network()
            optimizer = hvd.DistributedOptimizer(make_optimizer(model))
            program = functools.partial(self.train, model, optimizer, [0])
            text = self.expect_same_error("The optimizers differ", program)
            assert options in text, text

    def check_parameters_in_another_order(self) -> None:
        """Without names, parameters of equal shape in another order are paired wrongly. Their
        values show the mistake."""
        if self.size == 1:
            return
        torch.manual_seed(5)
        layers = [nn.Linear(3, 3) for _ in range(2)]
        own_order = [p for layer in layers[:: 1 if self.rank else -1] for p in layer.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own_order, lr=0.1))
        sum(layer(torch.ones(3)).sum() for layer in layers).backward()  # type: ignore[union-attr]
        self.expect_same_error("are not the same on all ranks", optimizer.step)

    def check_a_state_that_one_rank_loads(self) -> None:
        """A rank loads a checkpoint, and the others get it by broadcasts."""
        model = network()
        optimizer = self.distributed(model)
        self.train(model, optimizer, range(3))
        saved_states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        self.train(model, optimizer, range(3, 5))
        if self.rank == 0:
            model.load_state_dict(saved_states[0])
            optimizer.load_state_dict(saved_states[1])
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.train(model, optimizer, range(3, 5))
        reference = network()
        self.train_reference(reference, sgd(reference), range(5))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_copies(self) -> None:
        optimizer = self.distributed(network())
        for copy_optimizer in (
            copy.copy,
            copy.deepcopy,
            pickle.dumps,
            lambda o: torch.save(o, io.BytesIO()),
        ):
            self.expect_error("cannot be copied or pickled", copy_optimizer, optimizer)
