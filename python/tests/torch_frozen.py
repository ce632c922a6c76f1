"""Checks of frozen parameters that still have a gradient, and of ranks that freeze different
parameters.

A PyTorch optimizer also updates frozen parameters if they have gradients, so these gradients must
be combined, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch_optimizer import OptimizerFixture, network, square_loss
from torch_training import DoublingCompressor, EmbeddingModel

import farandole.torch as hvd

OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {"op": hvd.Sum},
    {"op": hvd.Sum, "groups": 3},
    {"groups": 100},
    {"compression": DoublingCompressor},
)


def drop_trained_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = None


class FrozenChecks(OptimizerFixture):
    def trained_network(self) -> tuple[Any, Any]:
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        self.train(model, optimizer, range(2))
        return model, optimizer

    def compare_frozen(
        self, layers: Iterable[int], prepare: Callable[..., None], options: dict[str, Any]
    ) -> None:
        """Train a little, call prepare(), freeze these layers, and train on. The frozen layers keep
        their gradients. Compare with one process."""
        model, reference = network(), network()
        factor = self.size if options.get("op") is hvd.Sum else 1
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1 * factor)

        def run_own_pass(step: int) -> None:
            square_loss(model, self.rank, step).backward()

        def run_pass_of_all(step: int) -> None:
            for rank in range(self.size):
                (square_loss(reference, rank, step) / self.size).backward()

        for module, stepper, run_pass in (
            (model, optimizer, run_own_pass),
            (reference, reference_optimizer, run_pass_of_all),
        ):
            prepare(stepper, run_pass)
            for number in layers:
                module[number].requires_grad_(False)
            for step in range(10, 14):
                drop_trained_gradients(module)
                run_pass(step)
                stepper.step()
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_gradients_that_are_combined(self) -> None:
        """Frozen parameters keep the combined gradient of the last step before the freeze. Later
        steps use this gradient, and must not combine it a second time."""

        def prepare(optimizer: Any, run_pass: Callable[[int], None]) -> None:
            for step in range(2):
                optimizer.zero_grad()
                run_pass(step)
                optimizer.step()

        for layers, options in itertools.product(([0], [0, 2]), OPTIONS):
            self.compare_frozen(layers, prepare, options)

    def check_frozen_before_gradients_are_combined(self) -> None:
        """The parameters are frozen after a pass within no_sync(). The next step combines their
        gradients, whether the gradients have places in a bucket or not."""
        for has_places, set_to_none in ((False, True), (True, True), (True, False)):

            def prepare(
                optimizer: Any,
                run_pass: Callable[[int], None],
                has_places: bool = has_places,
                set_to_none: bool = set_to_none,
            ) -> None:
                if has_places:
                    run_pass(0)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=set_to_none)
                with optimizer.no_sync() if hasattr(optimizer, "no_sync") else torch.enable_grad():
                    run_pass(1)

            for layers, options in itertools.product(([0], [0, 2]), OPTIONS):
                self.compare_frozen(layers, prepare, options)

    def check_a_frozen_table_with_a_gradient(self) -> None:
        """The gradient of the frozen table stays sparse, and has the same values on all ranks."""
        for as_dense, combined in itertools.product((False, True), repeat=2):
            model = EmbeddingModel()
            optimizer: Any = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=as_dense
            )
            model.loss(self.rank, 0, uses_second_table=True).backward()
            optimizer.step()
            if not combined:
                optimizer.zero_grad()
                with optimizer.no_sync():
                    model.loss(self.rank, 1, uses_second_table=True).backward()
            table = model.always.weight.requires_grad_(False)
            for step in range(2, 5):
                drop_trained_gradients(model)
                model.loss(self.rank, step, uses_second_table=True).backward()
                optimizer.step()
                assert table.grad is not None and table.grad.is_sparse
                self.expect_same_everywhere(model)

    def check_a_frozen_gradient_that_one_rank_drops(self) -> None:
        if self.size == 1:
            return
        model, optimizer = self.trained_network()
        model[0].bias.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        if self.rank == 0:
            model[0].bias.grad = None
        else:
            model[2].bias.grad = None
        drop_trained_gradients(model)
        backward = square_loss(model, self.rank, 2).backward
        text = self.expect_error("drop the same gradients", backward)
        assert set(hvd.allgather_object(text)) == {text}
        optimizer.zero_grad()
        self.train(model, optimizer, range(3))
        self.expect_same_everywhere(model)

    def check_every_difference_is_an_error(self) -> None:
        """Two ranks freeze different parameters: none, one or two of six."""
        if self.size == 1:
            return
        model, optimizer = self.trained_network()
        parameters = list(model.parameters())
        choices = [c for count in range(3) for c in itertools.combinations(parameters, count)]
        for own_choice, other_choice in itertools.islice(
            itertools.combinations(choices, 2), 0, None, 3
        ):
            for parameter in other_choice if self.rank else own_choice:
                parameter.requires_grad_(False)
            optimizer.zero_grad()
            self.expect_error(
                "freeze the same parameters", square_loss(model, self.rank, 2).backward
            )
            model.requires_grad_(True)
        self.train(model, optimizer, range(3))
        self.expect_same_everywhere(model)
