"""Checks the options of DistributedOptimizer, and sparse gradients.

The reference is a training in one process.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import reference
import torch
from torch import nn
from torch_optimizer import OptimizerFixture, network, square_loss

import farandole.torch as hvd


class DoublingCompressor(hvd.Compressor):
    """A compressor of a program, which sends twice the values, and records the shapes of the
    tensors."""

    shapes: ClassVar[set[tuple[int, ...]]] = set()

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        DoublingCompressor.shapes.add(tuple(tensor.shape))
        return tensor * 2, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor / 2


class EmbeddingModel(nn.Module):
    """A model with a dense layer and two embedding tables. Only some steps use the second table.

    The gradients of the tables are sparse.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.always = nn.Embedding(20, 3, sparse=True).double()
        self.sometimes = nn.Embedding(5, 3, sparse=True).double()
        self.dense = nn.Linear(3, 2).double()

    def loss(self, rank: int, step: int, uses_second_table: bool) -> torch.Tensor:
        words = torch.tensor([(3 * rank + step) % 20, (7 * rank + 2 * step) % 20, 1])
        rows = self.always(words) + (self.sometimes(words % 5) if uses_second_table else 0)
        return self.dense(rows).square().mean()


class TrainingChecks(OptimizerFixture):
    def compare(self, tolerance: float = 1e-9, **options: Any) -> None:
        """Compare with one process. With momentum, a mistake in one step is also visible in the
        next one.

        The option `groups` may be a function that takes the model.
        """
        model, reference = network(), network()
        if callable(options.get("groups")):
            options["groups"] = options["groups"](model)
        wrapped_optimizer, reference_optimizer = (
            torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            for module in (model, reference)
        )
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters(), **options)
        self.train(model, optimizer, range(5))
        self.train_reference(reference, reference_optimizer, range(5))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference, tolerance)

    def check_arguments_by_position(self) -> None:
        model, reference = network(), network()
        wrapped_optimizer, world = (
            torch.optim.SGD(model.parameters(), lr=0.1),
            hvd.global_process_set,
        )
        names, none = model.named_parameters(), hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(
            wrapped_optimizer, names, none, 1, hvd.Average, 1.0, 0, None, False, world
        )
        self.train(model, optimizer, range(2))
        self.train_reference(reference, torch.optim.SGD(reference.parameters(), lr=0.1), range(2))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_predivide_factor(self) -> None:
        self.compare(gradient_predivide_factor=4.0)
        self.compare(gradient_predivide_factor=0.5, groups=2)
        self.compare(gradient_predivide_factor=2.0, groups=lambda m: [list(m[0].parameters())])

    def check_groups(self) -> None:
        for groups in (0, 1, 3, 100, lambda m: [], lambda m: [[m[4].bias, m[0].weight], []]):
            self.compare(groups=groups)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.compare(num_groups=2)
        assert [warning.category for warning in caught] == [DeprecationWarning]

    def check_a_group_is_one_bucket(self) -> None:
        """A group becomes one bucket. A parameter in no group gets a bucket of its own."""
        if self.size == 1:
            return
        model = network()
        first_group, other_parameters = (
            [model[0].weight, model[4].bias],
            [model[0].bias, model[2].weight],
        )
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), groups=[first_group]
        )
        self.train(model, optimizer, range(1))

        def address_of(parameter: torch.Tensor) -> int:
            assert parameter.grad is not None
            return parameter.grad.untyped_storage().data_ptr()

        assert len({address_of(parameter) for parameter in first_group}) == 1
        assert len({address_of(parameter) for parameter in first_group + other_parameters}) == 3

    def check_attributes_that_programs_read(self) -> None:
        for op in (hvd.Average, hvd.Adasum):
            model = network()
            optimizer: Any = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(),
                compression=hvd.Compression.bf16,
                backward_passes_per_step=2,
                op=op,
                gradient_predivide_factor=2.0 if op is hvd.Average else 1.0,
                sparse_as_dense=True,
            )
            assert optimizer.op is op and optimizer.process_set is hvd.global_process_set
            assert optimizer.gradient_predivide_factor == (2.0 if op is hvd.Average else 1.0)
            assert optimizer.sparse_as_dense is True
            assert optimizer._compression is hvd.Compression.bf16
            assert optimizer._parameter_names == {p: n for n, p in model.named_parameters()}
            model[4].bias.requires_grad_(False)
            assert optimizer._requires_update == {*model.parameters()} - {model[4].bias}
            assert optimizer.backward_passes_per_step == 2
            optimizer.set_backward_passes_per_step(3)
            assert optimizer.backward_passes_per_step == 3
            optimizer.backward_passes_per_step = 1
            square_loss(model, self.rank, 0).backward()
            optimizer.step()
            assert optimizer.backward_passes_per_step == 1 and optimizer._handles == {}

    def check_gradients_in_flight_have_handles(self) -> None:
        """Rank 0 lacks the gradients of the first layer, so only step() combines them."""
        model = network()
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for step in range(2):
            optimizer.zero_grad()
            used_layers = model[1:] if self.rank == 0 else model
            size = 16 if self.rank == 0 else 5
            used_layers(torch.ones(2, size, dtype=torch.float64)).sum().backward()
            if step > 0 and self.rank > 0:
                assert set(optimizer._handles) >= set(model[0].parameters())
            optimizer.step()
            assert optimizer._handles == {}

    def check_compression(self) -> None:
        self.compare(0.02, compression=hvd.Compression.fp16)
        self.compare(0.05, compression=hvd.Compression.bf16, groups=2)
        self.compare(0.02, compression=hvd.Compression.fp16, gradient_predivide_factor=2.0)
        self.compare(compression=DoublingCompressor)
        assert self.size == 1 or (16, 5) in DoublingCompressor.shapes  # the shape of one parameter

    def compare_with_batches_per_step(
        self, model: nn.Module, steps: Sequence[Sequence[int]], options: dict[str, Any]
    ) -> None:
        """In step i, train with all the batches `steps[i]`. Compare with one process."""
        reference = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for batches in steps:
            optimizer.zero_grad()
            for number in batches:
                square_loss(model, self.rank, number).backward()
            optimizer.step()

            def total_loss(
                module: nn.Module, rank: int, _: int, batches: Any = batches
            ) -> torch.Tensor:
                return sum(
                    (square_loss(module, rank, number) for number in batches), torch.zeros(())
                )

            self.train_reference(reference, reference_optimizer, [0], total_loss)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_the_last_step_has_fewer_passes(self) -> None:
        """The last step of an epoch may have fewer passes than declared. The next step counts its
        passes from 0."""
        steps = [(0, 1, 2), (3, 4), (5, 6, 7), (8,)]
        self.compare_with_batches_per_step(network(), steps, {"backward_passes_per_step": 3})

    def check_one_rank_has_fewer_passes(self) -> None:
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
        )

        def passes(module: nn.Module, rank: int, step: int) -> list[torch.Tensor]:
            count = 1 if rank == 0 and step % 2 == 0 else 2
            return [square_loss(module, rank, number) for number in range(count)]

        for step in range(4):
            optimizer.zero_grad()
            for loss in passes(model, self.rank, step):
                loss.backward()
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        self.train_reference(
            reference,
            reference_optimizer,
            range(4),
            lambda m, rank, step: torch.stack(passes(m, rank, step)).sum(),
        )
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_no_sync(self) -> None:
        """Passes within no_sync() only add up, even if step() directly follows them."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            with optimizer.no_sync():
                square_loss(model, self.rank, 2 * step).backward()
                optimizer.zero_grad()  # a pass within no_sync() starts no call
                square_loss(model, self.rank, 2 * step).backward()
            if step != 2:
                square_loss(model, self.rank, 2 * step + 1).backward()
            optimizer.step()

            def both_losses(module: nn.Module, rank: int, step_number: int) -> torch.Tensor:
                second_loss = (
                    square_loss(module, rank, 2 * step_number + 1) if step_number != 2 else 0
                )
                return square_loss(module, rank, 2 * step_number) + second_loss

            self.train_reference(reference, reference_optimizer, [step], both_losses)
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_sparse_gradients(self) -> None:
        """Only one rank at a time uses the second table. In the first step, no rank uses it."""
        for as_dense in (False, True):
            model, reference = EmbeddingModel(), EmbeddingModel()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=as_dense
            )
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            for step in range(6):
                using_rank = (step - 1) % self.size if step > 0 else -1
                optimizer.zero_grad()
                model.loss(self.rank, step, uses_second_table=self.rank == using_rank).backward()
                optimizer.step()
                reference_optimizer.zero_grad()
                for rank in range(self.size):
                    (
                        reference.loss(rank, step, uses_second_table=rank == using_rank) / self.size
                    ).backward()
                reference_optimizer.step()
                for table in (model.always, model.sometimes) if step > 0 < self.size - 1 else ():
                    assert table.weight.grad is not None and table.weight.grad.is_sparse
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_sparse_gradients_may_be_changed_after_backward(self) -> None:
        def scale(table: torch.Tensor) -> None:
            assert table.grad is not None
            table.grad.mul_(0.5)

        def replace(table: torch.Tensor) -> None:
            assert table.grad is not None
            table.grad = table.grad * 0.5

        for change_gradients, as_dense in itertools.product((scale, replace), (False, True)):
            model, reference = EmbeddingModel(), EmbeddingModel()
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=as_dense
            )
            for step in range(3):  # the first step gives the gradients their memory
                optimizer.zero_grad()
                model.loss(self.rank, step, uses_second_table=True).backward()
                change_gradients(model.always.weight)
                optimizer.step()
                reference_optimizer.zero_grad()
                for rank in range(self.size):
                    (reference.loss(rank, step, uses_second_table=True) / self.size).backward()
                change_gradients(reference.always.weight)
                reference_optimizer.step()
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_a_frozen_table_keeps_its_values(self) -> None:
        """The table is frozen after a step. Its gradient of this step is still in the bucket, and
        must not be applied again."""
        for as_dense in (False, True):
            model = EmbeddingModel()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), sparse_as_dense=as_dense
            )
            model.loss(self.rank, 0, uses_second_table=True).backward()
            optimizer.step()
            table = model.always.weight.requires_grad_(False)
            table_before = table.detach().clone()
            for step in range(1, 4):
                optimizer.zero_grad()
                model.loss(self.rank, step, uses_second_table=True).backward()
                optimizer.step()
            assert table.grad is None and torch.equal(table, table_before)

    def check_an_optimizer_for_sparse_gradients_only(self) -> None:
        """SparseAdam rejects dense gradients, so the optimizer must never give it any, whether
        zero_grad() sets gradients to None or to zeros."""

        def make_optimizers(model: EmbeddingModel) -> list[torch.optim.Optimizer]:
            tables = [*model.always.parameters()]
            sparse = torch.optim.SparseAdam(tables, lr=0.1)
            return [sparse, torch.optim.Adam(model.dense.parameters())]

        for as_dense, to_none in itertools.product((False, True), repeat=2):
            model, reference = EmbeddingModel(), EmbeddingModel()
            reference_optimizer = make_optimizers(reference)
            distributed = [
                hvd.DistributedOptimizer(optimizer, sparse_as_dense=as_dense)
                for optimizer in make_optimizers(model)
            ]
            for step in range(4):
                self.train_one_step(model, distributed, [self.rank], step, to_none)
                self.train_one_step(reference, reference_optimizer, range(self.size), step, True)
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    @staticmethod
    def train_one_step(
        model: EmbeddingModel,
        optimizers: Sequence[torch.optim.Optimizer],
        ranks: Sequence[int],
        step: int,
        set_to_none: bool,
    ) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none)
        for rank in ranks:
            (model.loss(rank, step, uses_second_table=False) / len(ranks)).backward()
        for optimizer in optimizers:
            optimizer.step()

    def expect_deltas(
        self, combine: Callable[[torch.Tensor], torch.Tensor], **options: Any
    ) -> None:
        """Check that each step changes the parameters by combine(delta), where `delta` is the
        change that this rank would make alone."""
        passes = options.get("backward_passes_per_step", 1)
        model, local_model = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01), op=hvd.Adasum, **options
        )
        local_optimizer = torch.optim.Adam(local_model.parameters(), lr=0.01)
        for step in range(3):
            start_state = copy.deepcopy(model.state_dict())
            local_model.load_state_dict(start_state)
            for module, module_optimizer in ((model, optimizer), (local_model, local_optimizer)):
                module_optimizer.zero_grad()
                for number in range(passes):
                    square_loss(module, self.rank, 2 * step + number).backward()
            optimizer.synchronize()  # with Adasum, this call has no effect
            optimizer.step()
            local_optimizer.step()
            for name, parameter in local_model.named_parameters():
                expected = start_state[name] + combine(parameter.detach() - start_state[name])
                actual = model.get_parameter(name)
                torch.testing.assert_close(actual, expected, rtol=0, atol=5e-5)
        self.expect_same_everywhere(model)

    def check_adasum(self) -> None:
        def adasum(delta: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(reference.adasum(hvd.allgather(delta[None]).numpy()))

        self.expect_deltas(adasum)
        self.expect_deltas(adasum, backward_passes_per_step=2)
        self.expect_deltas(adasum, compression=hvd.Compression.fp16)

    def check_adasum_of_frozen_parameters_with_a_gradient(self) -> None:
        """A frozen parameter with a gradient still changes by its momentum, which differs by rank,
        so the changes must be combined. The last rank has no gradient for it."""
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), op=hvd.Adasum
        )
        for step in range(4):
            first_parameter = next(model.parameters()).requires_grad_(step < 2)
            optimizer.zero_grad(set_to_none=False)
            if step >= 2 and self.rank == self.size - 1:
                first_parameter.grad = None
            square_loss(model, self.rank, step).backward()
            optimizer.step()
            self.expect_same_everywhere(model)

    def check_adasum_with_a_grad_scaler_skips_the_same_steps_on_all_ranks(self) -> None:
        """If the gradients of one rank overflow, all ranks skip the step, with and without
        unscale_()."""
        overflows = {2: 0, 4: self.size - 1}  # by step: the rank whose loss overflows
        for unscales, scales_loss in ((False, True), (True, True), (False, False)):
            torch.manual_seed(5)
            model = nn.Linear(3, 2)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), op=hvd.Adasum
            )
            scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=scales_loss)
            for step in range(7):
                if not scales_loss and step in overflows:
                    continue  # the scaler must skip this step, too
                optimizer.zero_grad()
                loss = model(torch.full((4, 3), 1.0 + self.rank + step % 2)).square().mean()
                if scales_loss and overflows.get(step) == self.rank:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                if unscales:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                self.expect_same_everywhere(model)
            if scales_loss and not unscales:
                trained = [parameter.detach().clone() for parameter in model.parameters()]
            for parameter, expected in zip(model.parameters(), trained, strict=True):
                assert torch.equal(parameter, expected), (unscales, scales_loss)

    def check_adasum_restores_parameters_if_a_step_cannot_be_combined(self) -> None:
        if self.size == 1:
            return
        torch.manual_seed(1)
        model = nn.Linear(5, 2).double()
        model_before = copy.deepcopy(model)
        compression = hvd.Compression.none if self.rank else hvd.Compression.fp16
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=compression, op=hvd.Adasum
        )
        square_loss(model, 0, 0).backward()
        self.expect_error("deltas", optimizer.step)
        self.expect_equal(model, model_before, tolerance=0)

    def check_misuse_is_also_an_assertion(self) -> None:
        if self.size == 1:
            return
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            square_loss(model, self.rank, 0).backward()
            try:
                square_loss(model, self.rank, 0).backward()
            except AssertionError as error:
                assert isinstance(error, hvd.CallError)
            else:
                raise RuntimeError("a pass was added to combined gradients")
            optimizer.zero_grad()

    def check_fresh_state_of_a_distributed_optimizer(self) -> None:
        """A broadcast makes the state of an optimizer that has none. It changes no parameter and no
        gradient, and only trained parameters get a state."""
        model = network()
        model_before = copy.deepcopy(model)
        model[0].weight.requires_grad_(False)
        wrapped_optimizer = torch.optim.Adam(
            model.parameters(), lr=0.1 * (self.rank + 1), weight_decay=0.1
        )
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, 0, model)
        self.expect_equal(model, model_before, tolerance=0)
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert all(parameter.grad is None for parameter in model.parameters())
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters())) - 1
        self.train(model, optimizer, range(2))
        self.expect_same_everywhere(model)

    def check_parameters_without_names(self) -> None:
        torch.manual_seed(self.rank)
        model = nn.Linear(3, 3)
        hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
        torch.manual_seed(0)
        self.expect_equal(model, nn.Linear(3, 3), tolerance=0)
