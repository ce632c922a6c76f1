"""Checks that ranks with different numbers of batches train like one process, with join()."""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_optimizer import OptimizerFixture, network, square_loss
from torch_training import EmbeddingModel

import farandole.torch as hvd


class JoinChecks(OptimizerFixture):
    def uneven_steps(self, seed: int) -> list[list[int]]:
        """Return a list for each epoch: the number of steps of each rank. In the first epoch, rank
        0 makes no step."""
        generator = random.Random(seed)
        epochs = [[generator.randrange(5) for _ in range(self.size)] for _ in range(4)]
        epochs[0] = [0] + [generator.randrange(1, 5) for _ in range(self.size - 1)]
        return epochs

    def loss(self, model: nn.Module, rank: int, step: int) -> torch.Tensor:
        if isinstance(model, EmbeddingModel):
            return model.loss(rank, step, uses_second_table=step % 2 == 1)
        return square_loss(model, rank, step)

    def train_epoch(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        epoch: int,
        steps: int,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        for step in range(10 * epoch, 10 * epoch + steps):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = self.loss(model, self.rank, step)
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
        last_joined_rank = hvd.join()
        for model, optimizer in zip(models, optimizers, strict=True):
            hvd.broadcast_parameters(model.state_dict(), root_rank=last_joined_rank)
            hvd.broadcast_optimizer_state(optimizer, root_rank=last_joined_rank)

    def train_epoch_in_one_process(
        self, model: nn.Module, optimizer: Any, epoch: int, steps: list[int], op: Any
    ) -> None:
        for step in range(max(steps)):
            optimizer.zero_grad()
            ranks_with_batch = [rank for rank in range(self.size) if steps[rank] > step]
            divisor = {
                hvd.Average: self.size,
                hvd.AverageOfPresent: len(ranks_with_batch),
                hvd.Sum: 1,
            }[op]
            for rank in ranks_with_batch:
                (self.loss(model, rank, 10 * epoch + step) / divisor).backward()
            for parameter in model.parameters():
                if parameter.grad is None and self.size > 1:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

    def compare_uneven_training(self, seed: int, builders: Sequence[Any], **options: Any) -> None:
        """Compare with one process. In the first epoch, train only the first model."""
        models, references = ([build() for build in builders] for _ in range(2))
        optimizers, reference_optimizers = (
            [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in modules]
            for modules in (models, references)
        )
        wrapped = [
            hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters(), **options)
            for model, wrapped_optimizer in zip(models, optimizers, strict=True)
        ]
        op = options.get("op", hvd.Average)
        for epoch, steps in enumerate(self.uneven_steps(seed)):
            used_count = 1 if epoch == 0 else len(models)
            self.train_epoch(models[:used_count], wrapped[:used_count], epoch, steps[self.rank])
            for reference, optimizer in zip(
                references[:used_count], reference_optimizers[:used_count], strict=True
            ):
                self.train_epoch_in_one_process(reference, optimizer, epoch, steps, op)
        for model, reference in zip(models, references, strict=True):
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_uneven_batches(self) -> None:
        for seed in range(6):
            self.compare_uneven_training(seed, [network])
            self.compare_uneven_training(seed, [network, network], op=hvd.AverageOfPresent)
            self.compare_uneven_training(seed, [network], groups=3, op=hvd.Sum)

    def check_uneven_batches_with_sparse_gradients(self) -> None:
        for seed in range(4):
            self.compare_uneven_training(seed, [EmbeddingModel, network])
            self.compare_uneven_training(seed, [EmbeddingModel, network], op=hvd.AverageOfPresent)
            self.compare_uneven_training(seed, [EmbeddingModel], sparse_as_dense=True)

    def check_the_parameter_check_counts_the_same_steps(self) -> None:
        """The ranks have made different numbers of steps before each join()."""
        hvd.shutdown()
        os.environ["FARANDOLE_CHECK_PARAMETERS"] = "2"
        hvd.init()
        for seed in range(4):
            self.compare_uneven_training(seed, [network, network])
        hvd.shutdown()
        del os.environ["FARANDOLE_CHECK_PARAMETERS"]
        hvd.init()

    def check_adasum_pairs_again_after_a_join(self) -> None:
        for seed, scales_loss in itertools.product(range(4), (False, True)):
            models = [network(), network()]
            optimizers = [
                hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.05),
                    model.named_parameters(),
                    op=hvd.Adasum,
                )
                for model in models
            ]
            for epoch, steps in enumerate(self.uneven_steps(seed)):
                used_count = 1 if epoch == 0 else 2
                scaler = (
                    torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
                    if scales_loss
                    else None
                )
                self.train_epoch(
                    models[:used_count], optimizers[:used_count], epoch, steps[self.rank], scaler
                )
                for model in models:
                    self.expect_same_everywhere(model)

    def check_unnamed_calls_pair_after_a_join(self) -> None:
        """Before join(), the ranks make different numbers of calls, and each rank keeps or drops
        different handles."""
        generator = random.Random(100 + self.rank)
        kept_handles = []
        for _ in range(20):
            for _ in range(generator.randrange(4)):
                handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
                if generator.random() < 0.5:
                    kept_handles.append(handle)
                if kept_handles and generator.random() < 0.3:
                    hvd.synchronize(kept_handles.pop(generator.randrange(len(kept_handles))))
            hvd.join()
            handles = [
                hvd.allreduce_async(torch.full((2,), 10.0**power), op=hvd.Sum) for power in range(3)
            ]
            for power, handle in enumerate(handles):
                assert hvd.synchronize(handle).tolist() == [self.size * 10.0**power] * 2
            assert hvd.allreduce(torch.ones(1), name="again", op=hvd.Sum).item() == self.size
        for handle in kept_handles:
            assert hvd.synchronize(handle)[0].item() >= 1

    def check_a_backward_pass_without_a_step_before_a_join(self) -> None:
        """Rank 0 has one more batch than the other ranks, and drops the gradients of this batch."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
        )
        self.train(model, optimizer, range(2))
        if self.rank == 0:
            model.zero_grad()
            square_loss(model, self.rank, 5).backward()
        hvd.join()
        for step in range(2, 4):
            model.zero_grad()
            square_loss(model, self.rank, step).backward()
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_an_interrupted_join_goes_on(self) -> None:
        """A signal interrupts join() on one rank, which then calls it again. Afterwards, all ranks
        train on."""
        if self.size == 1:
            return  # join() would have no other rank to wait for
        model = network()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
        )
        self.train(model, optimizer, range(2))
        with tempfile.TemporaryDirectory() as temporary_folder:
            folder = Path(hvd.broadcast_object(temporary_folder, 0))
            joined, interrupted = folder / "joined", folder / "interrupted"
            if self.rank == self.size - 1:
                self._join_until_interrupted(joined)
                interrupted.touch()
            else:
                hvd.allreduce(torch.ones(1), name="done when the last rank has joined")
                joined.touch()
            while not interrupted.exists():
                time.sleep(0.01)
            assert 0 <= hvd.join() < self.size
            self.train(model, optimizer, range(2, 4))
        self.expect_same_everywhere(model)

    def _join_until_interrupted(self, joined: Path) -> None:
        def interrupt_main_thread() -> None:
            while not joined.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGUSR2)

        previous_handler = signal.signal(signal.SIGUSR2, self._interrupt)
        thread = threading.Thread(target=interrupt_main_thread)
        thread.start()
        try:
            hvd.join()
        except InterruptedError:
            pass
        else:
            raise AssertionError("the signal interrupts join()")
        finally:
            thread.join()
            signal.signal(signal.SIGUSR2, previous_handler)
        try:
            hvd.allreduce(torch.ones(1))
        except hvd.CallError as error:
            assert "wait until join() has returned" in str(error), error
        else:
            raise AssertionError("a rank that has joined can make no calls")

    @staticmethod
    def _interrupt(*_arguments: object) -> None:
        raise InterruptedError

    def check_sync_batch_norm_while_ranks_have_joined(self) -> None:
        model = nn.Sequential(nn.Linear(5, 4), hvd.SyncBatchNorm(4), nn.Linear(4, 2)).double()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
        )
        for epoch, steps in enumerate(self.uneven_steps(1)):
            self.train_epoch([model], [optimizer], epoch, steps[self.rank])
            self.expect_same_everywhere(model)

    def check_a_join_between_backward_and_step(self) -> None:
        """The ranks call join() between backward() and step(). backward() has combined the
        gradients, so step() must not combine them again."""
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), op=hvd.Sum
        )
        for step in range(4):
            optimizer.zero_grad()
            square_loss(model, self.rank, step).backward()
            if step > 0:
                hvd.join()
            optimizer.step()
        reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
        for step in range(4):
            reference_optimizer.zero_grad()
            for rank in range(self.size):
                square_loss(reference, rank, step).backward()
            reference_optimizer.step()
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)
