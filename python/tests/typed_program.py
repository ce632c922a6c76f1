"""A user's program that declares the types that its calls must return. mypy checks it, but no test
runs it.

test_types.py checks it twice: as it is, and with Horovod's import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import assert_type

import farandole.torch as hvd


class OwnOptimizer(torch.optim.Optimizer):
    own = 1


def operations(tensor: torch.Tensor, tensors: list[torch.Tensor], rows: list[int] | None) -> None:
    pair = tuple[torch.Tensor, torch.Tensor]
    assert_type(hvd.allreduce(tensor, op=hvd.Sum, process_set=hvd.global_process_set), torch.Tensor)
    assert_type(
        hvd.grouped_allreduce(tensors, compression=hvd.Compression.fp16), list[torch.Tensor]
    )
    assert_type(hvd.allgather(tensor, name="rows"), torch.Tensor)
    assert_type(hvd.alltoall(tensor), torch.Tensor)
    assert_type(hvd.alltoall(tensor, [1, 2]), pair)
    assert_type(hvd.alltoall(tensor, tensor), pair)
    assert_type(hvd.alltoall(tensor, rows), torch.Tensor | pair)
    assert_type(hvd.grouped_alltoall(tensors), list[torch.Tensor])
    assert_type(hvd.grouped_alltoall(tensors, [[1, 2], None]), list[pair])
    assert_type(hvd.sparse_allreduce_async(tensor, None, hvd.Sum)(), torch.Tensor)


def handles(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    pair = tuple[torch.Tensor, torch.Tensor]
    assert_type(hvd.synchronize(hvd.allreduce_async(tensor)), torch.Tensor)
    assert_type(hvd.synchronize(hvd.alltoall_async(tensor)), pair)
    assert_type(hvd.synchronize(hvd.grouped_allreduce_async_(tensors)), list[torch.Tensor])
    assert_type(hvd.synchronize(hvd.grouped_alltoall_async(tensors)), list[pair])
    assert_type(hvd.allgather_async(tensor).wait(), torch.Tensor)
    assert_type(hvd.synchronize(int(hvd.broadcast_async(tensor, 0))), Any)
    assert_type(hvd.poll(hvd.reducescatter_async(tensor)), bool)


def objects() -> None:
    assert_type(hvd.broadcast_object(3, root_rank=0), int)
    assert_type(hvd.broadcast_object(None), Any)
    assert_type(hvd.allgather_object("text"), list[str])
    assert_type(hvd.ProcessSet([0, 1]).ranks, list[int])
    assert_type(hvd.join(), int)
    assert_type(hvd.rank(), int)


def clipped_step(model: nn.Module, loss: torch.Tensor) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), op=hvd.Average, compression=hvd.Compression.bf16
    )
    torch.optim.lr_scheduler.StepLR(optimizer, 30)
    loss.backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    with optimizer.no_sync():
        loss.backward()
    optimizer.set_backward_passes_per_step(2)
    assert_type(optimizer.backward_passes_per_step, int)
    hvd.DistributedOptimizer(optimizer, backward_passes_per_step="two")  # type: ignore[call-overload]
    return optimizer


def optimizers(
    adam: torch.optim.Adam,
    adamw: torch.optim.AdamW,
    any_optimizer: torch.optim.Optimizer,
    own: OwnOptimizer,
) -> None:
    distributed_adam: torch.optim.Adam = hvd.DistributedOptimizer(adam)
    distributed_adamw: torch.optim.AdamW = hvd.DistributedOptimizer(optimizer=adamw, groups=2)
    hvd.DistributedOptimizer(adamw).synchronize()
    hvd.broadcast_optimizer_state(distributed_adam, root_rank=0)
    hvd.broadcast_optimizer_state(distributed_adamw, root_rank=0)
    assert_type(hvd.DistributedOptimizer(any_optimizer), torch.optim.Optimizer)
    distributed = hvd.DistributedOptimizer(own)
    assert_type(distributed, OwnOptimizer)
    assert isinstance(distributed, hvd.AnyDistributedOptimizer)
    distributed.synchronize()
    assert_type(distributed.own, int)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, epochs: int) -> int:
    while state.epoch < epochs:
        state.epoch += 1
        state.commit()
    return epochs


def steps(state: hvd.elastic.TorchState) -> None:
    step = hvd.elastic.Step(state)
    while assert_type(step.ready(), bool) and state.epoch < 2:
        with step:
            state.epoch += 1
    assert_type(state.epoch, Any)


def main() -> None:
    hvd.init()
    model = nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.check_parameters(model.named_parameters())
    operations(torch.ones(2), [torch.ones(2)], None)
    handles(torch.ones(2), [torch.ones(2)])
    objects()
    clipped_step(model, model(torch.ones(2)).sum())
    assert_type(train(hvd.elastic.TorchState(model, epoch=0), 3), int)
    steps(hvd.elastic.TorchState(model, epoch=0))
    hvd.shutdown()
