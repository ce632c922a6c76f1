"""Checks of communication hooks of DistributedDataParallel, and of futures in them."""

import itertools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch_distributed import (
    init_process_group,
    network,
    rank,
    size,
    train,
    train_parallel,
)

import farandole.torch as hvd

Future = torch.futures.Future[torch.Tensor]
Hook = Callable[[object, dist.GradBucket], Future]


def expect_same_training(hook: Hook) -> None:
    """Check that training with this hook has the same result as training with torch's allreduce
    hook."""
    actual = train_parallel(network(), hook)
    expected = train_parallel(network(), default_hooks.allreduce_hook)
    assert all(itertools.starmap(torch.allclose, zip(actual, expected, strict=True)))


class HookChecks:
    def __init__(self) -> None:
        hvd.init()

    def check_a_second_call_after_the_first(self) -> None:
        """Callbacks make a second call for each bucket. On the last rank, the first call of a
        bucket is already done when the hook asks for its future, because all other ranks have made
        this call before."""
        init_process_group("farandole")

        def sum_twice(_state: object, bucket: dist.GradBucket) -> Future:
            if rank() == size() - 1:
                time.sleep(0.02)
            work = dist.all_reduce(bucket.buffer(), async_op=True)

            def sum_again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
                mean = future.value()[0] / size()
                sums = dist.all_reduce(mean, async_op=True).get_future().wait()[0]
                return sums / size()

            return work.get_future().then(sum_again)

        expect_same_training(sum_twice)
        dist.destroy_process_group()

    def check_power_sgd(self) -> None:
        """The callbacks of PowerSGD make two more calls. All ranks get the same parameters."""
        init_process_group("farandole")
        parallel = DistributedDataParallel(network(), bucket_cap_mb=0.001)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
        )
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        trained = train(parallel, torch.optim.SGD(parallel.parameters(), lr=0.1), steps=8)
        for parameter in trained:
            dist.all_reduce(largest := parameter.clone(), dist.ReduceOp.MAX)
            assert torch.equal(parameter, largest)
        dist.destroy_process_group()

    def check_a_hook_that_waits(self) -> None:
        """A hook may wait for a future within backward(), as torch's own PowerSGD does."""
        init_process_group("farandole")

        def wait_in_hook(_state: object, bucket: dist.GradBucket) -> Future:
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            future.wait()
            return future.then(lambda future: future.value()[0] / size())

        expect_same_training(wait_in_hook)
        dist.destroy_process_group()

    def check_an_optimizer_that_steps_within_backward(self) -> None:
        """Only the rank that updates the parameters of a bucket waits for the chained future of
        this bucket."""
        init_process_group("farandole")
        parallel = DistributedDataParallel(network(), bucket_cap_mb=0.0001)
        optimizer = ZeroRedundancyOptimizer(
            parallel.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook = hook_with_zero_step(default_hooks.allreduce_hook, parallel, optimizer)
        parallel.register_comm_hook(None, hook)
        torch.manual_seed(100 + rank())
        for _ in range(5):
            parallel(torch.randn(5, 6)).square().mean().backward()
        parameters = torch.cat(
            [parameter.detach().reshape(-1) for parameter in parallel.parameters()]
        )
        dist.all_reduce(largest := parameters.clone(), dist.ReduceOp.MAX)
        assert torch.equal(parameters, largest)
        dist.destroy_process_group()
