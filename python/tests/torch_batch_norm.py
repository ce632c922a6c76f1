"""Checks of SyncBatchNorm. The layer normalizes the batches of all ranks as one batch, and each
rank gets its part of the result."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import torch
from suite import Suite
from torch_frontend import TorchFrontend

import farandole.torch as hvd

CHANNELS = 5
# In each of three cases: the batch size of each rank.
ROWS = ((4, 4, 4, 4), (2, 1, 5, 3), (6, 0, 1, 2))
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (3, 4), (2, 2, 3))


class BatchNormChecks(Suite):
    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def batch(self, rank: int, rows: Sequence[int], shape: tuple[int, ...]) -> torch.Tensor:
        """Return a batch whose mean is far from zero, and different on each rank."""
        generator = torch.Generator().manual_seed(rank)
        values = torch.randn((rows[rank], CHANNELS, *shape), generator=generator)
        return values * (rank + 1) + 100 * (rank - 1)

    def layers(self, affine: bool = True, **options: object) -> tuple[torch.nn.Module, ...]:
        sync = hvd.SyncBatchNorm(CHANNELS, affine=affine, **options)
        batch_norm = torch.nn.BatchNorm2d(CHANNELS, affine=affine, **options)
        batch_norm._check_input_dim = lambda input: None  # allow any number of dimensions
        if affine:
            for layer in (sync, batch_norm):
                layer.weight.data = torch.arange(1.0, CHANNELS + 1)
                layer.bias.data = torch.arange(CHANNELS) / 10
        return sync, batch_norm

    def expect_same(
        self, layers: tuple[torch.nn.Module, ...], rows: Sequence[int], shape: tuple[int, ...]
    ) -> None:
        sync, batch_norm = layers
        parts = [self.batch(rank, rows, shape) for rank in range(self.size)]
        first_row = sum(rows[: self.rank])
        own_rows = slice(first_row, first_row + rows[self.rank])
        own_input, whole_batch = (
            parts[self.rank].clone().requires_grad_(),
            torch.cat(parts).requires_grad_(),
        )
        output, expected = sync(own_input), batch_norm(whole_batch)
        torch.testing.assert_close(output, expected[own_rows], rtol=1e-4, atol=1e-4)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
        (expected * weights).sum().backward()
        (output * weights[own_rows]).sum().backward()
        torch.testing.assert_close(own_input.grad, whole_batch.grad[own_rows], rtol=1e-3, atol=1e-4)
        for parameter, reference in zip(sync.parameters(), batch_norm.parameters(), strict=True):
            total = hvd.allreduce(parameter.grad, op=hvd.Sum)
            torch.testing.assert_close(total, reference.grad, rtol=1e-3, atol=1e-3)
            parameter.grad = reference.grad = None
        for name, buffer in batch_norm.named_buffers():
            torch.testing.assert_close(sync.get_buffer(name), buffer, rtol=1e-4, atol=1e-4)

    def check_results_are_those_of_one_batch(self) -> None:
        kinds = itertools.product((True, False), (0.1, None), ROWS, SHAPES)
        for affine, momentum, rows, shape in kinds:
            layers = self.layers(affine, momentum=momentum)
            for _ in range(3):
                self.expect_same(layers, rows, shape)

    def check_an_activation_in_place(self) -> None:
        """An in-place activation overwrites the output of the layer. Without weight and bias, the
        output equals the normalized input, which backward() needs."""
        for affine in (False, True):
            values = torch.arange(8.0 * self.size).view(-1, 2)
            own_part = values.chunk(self.size)[self.rank].clone().requires_grad_()
            whole_batch = values.clone().requires_grad_()
            torch.relu_(hvd.SyncBatchNorm(2, affine=affine)(own_part)).square().sum().backward()
            torch.relu(
                torch.nn.BatchNorm1d(2, affine=affine)(whole_batch)
            ).square().sum().backward()
            expected = whole_batch.grad.chunk(self.size)[self.rank]
            torch.testing.assert_close(own_part.grad, expected, rtol=1e-4, atol=1e-4)

    def check_without_running_statistics(self) -> None:
        layers = self.layers(track_running_stats=False, eps=0.1)
        self.expect_same(layers, ROWS[1], (3,))
        for layer in layers:
            layer.eval()
        self.expect_same(layers, ROWS[1], (3,))

    def check_eval(self) -> None:
        """In evaluation mode, the ranks exchange no data."""
        layers = self.layers()
        self.expect_same(layers, ROWS[0], (3,))
        sync, batch_norm = (layer.eval() for layer in layers)
        if self.rank == 0:
            batch = self.batch(0, ROWS[0], (3,))
            torch.testing.assert_close(sync(batch), batch_norm(batch))

    def check_half_types(self) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            sync, batch_norm = self.layers()
            parts = [torch.randn(8, CHANNELS).to(dtype) for _ in range(self.size)]
            parts = [hvd.broadcast(part, rank) for rank, part in enumerate(parts)]
            part = parts[self.rank].clone().requires_grad_()
            output = sync(part)
            expected = batch_norm(torch.cat(parts).float())[8 * self.rank :][:8]
            torch.testing.assert_close(output, expected.to(dtype), rtol=0.02, atol=0.02)
            output.sum().backward()
            assert part.grad.dtype == dtype

    def check_in_a_group(self) -> None:
        for group in self.my_groups():
            sync = hvd.SyncBatchNorm(CHANNELS, affine=False, process_set=group)
            batch_norm = torch.nn.BatchNorm1d(CHANNELS, affine=False)
            parts = [self.batch(rank, ROWS[0], ()) for rank in group.ranks]
            expected = batch_norm(torch.cat(parts))[4 * group.rank() :][:4]
            torch.testing.assert_close(sync(parts[group.rank()]), expected, rtol=1e-4, atol=1e-4)

    def check_converted_model(self) -> None:
        """A converted model learns what one process learns from the whole batch."""

        class Derived(torch.nn.BatchNorm1d):
            pass

        def make_model() -> torch.nn.Sequential:
            torch.manual_seed(3)
            shared_layer = torch.nn.BatchNorm1d(4, eps=0.01, momentum=0.3)
            block = torch.nn.Sequential(torch.nn.Linear(CHANNELS, 4), shared_layer, torch.nn.ReLU())
            last_layer = torch.nn.BatchNorm1d(4, affine=False)
            unbiased = torch.nn.BatchNorm1d(4)
            unbiased.bias = None
            parts = (
                block,
                torch.nn.Linear(4, 4),
                shared_layer,
                last_layer,
                torch.nn.Linear(4, 4),
                unbiased,
            )
            return torch.nn.Sequential(*parts).double()

        reference, model = make_model(), make_model()
        frozen = model[3].eval(), reference[3].eval()
        tensors_before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        assert converted is model and type(frozen[0]) is hvd.SyncBatchNorm
        assert type(model[0][1]) is hvd.SyncBatchNorm and model[0][1] is model[2]
        assert model[0][1].training and not model[3].training
        copied = copy.deepcopy(model)
        assert copied[5].process_set is model[5].process_set is hvd.global_process_set
        tensors_after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        assert list(tensors_after) == list(tensors_before) and all(
            tensors_after[n] is tensors_before[n] for n in tensors_before
        )
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]
        distributed = hvd.DistributedOptimizer(optimizers[1], model.named_parameters())
        for step in range(3):
            torch.manual_seed(step)
            batch = torch.randn(4 * self.size, CHANNELS, dtype=torch.float64)
            for module, rows, optimizer in (
                (reference, slice(None), optimizers[0]),
                (model, slice(4 * self.rank, 4 * self.rank + 4), distributed),
            ):
                optimizer.zero_grad()
                (module(batch[rows]) - 1).square().mean().backward()
                optimizer.step()
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value)
        other_layers = torch.nn.ModuleList(
            [torch.nn.LayerNorm(3), Derived(3), torch.nn.BatchNorm3d(3)]
        )
        kinds = [type(layer) for layer in hvd.SyncBatchNorm.convert_sync_batchnorm(other_layers)]
        assert kinds == [torch.nn.LayerNorm, Derived, hvd.SyncBatchNorm]
        lazy_model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.LazyBatchNorm1d())
        self.expect_error("LazyBatchNorm1d", hvd.SyncBatchNorm.convert_sync_batchnorm, lazy_model)
        assert type(lazy_model[0]) is torch.nn.BatchNorm1d

    def check_frozen_inputs_and_weights(self) -> None:
        """If the input needs no gradient, backward exchanges no data."""
        sync, _ = self.layers()
        sync.bias.requires_grad_(False)
        sync(self.batch(self.rank, ROWS[0], (2,))).sum().backward()
        assert sync.weight.grad is not None and sync.bias.grad is None

    def check_wrong_inputs(self) -> None:
        sync = hvd.SyncBatchNorm(CHANNELS)
        for shape in ((CHANNELS,), (4, CHANNELS + 1)):
            self.expect_error(f"(N, {CHANNELS}, ...)", sync, torch.ones(shape))
        if self.size > 1:
            rows = torch.ones(int(self.rank == 0), CHANNELS)
            self.expect_error("more than one value", sync, rows)
        self.expect_sum_works()
