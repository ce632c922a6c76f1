"""Checks that the torch.distributed backend computes the same as Gloo. A process runs each scenario
with both."""

import functools
import gc
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import checkpoint, pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from farandole.torch.distributed.process_group import ProcessGroup
from farandole.torch.distributed.work import Work, _callbacks_by_pass

Tensors = list[torch.Tensor]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
# Gloo supports these dtypes in every operation that only moves data.
MOVABLE_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.uint8,
)

warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message=".*find_unused_parameters.*")


group_counter = itertools.count()


@functools.cache
def store_of_all_hosts() -> dist.TCPStore:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=os.environ["RANK"] == "0")


def init_process_group(backend: str) -> None:
    """Over several hosts, use a TCPStore; under torchrun, use env://. Otherwise use farandole://:
    with this init method, Gloo needs no MASTER_ADDR, and each Gloo group gets a store of its
    own."""
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        store = dist.PrefixStore(f"group {next(group_counter)}", store_of_all_hosts())
        dist.init_process_group(backend, store=store, **ranks)
        return
    under_torchrun = "TORCHELASTIC_USE_AGENT_STORE" in os.environ
    dist.init_process_group(backend, init_method="env://" if under_torchrun else "farandole://")


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def small_numbers(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return small whole numbers that differ by rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank())
    return torch.randint(0, 4, (count,), generator=generator).to(dtype)


def network() -> nn.Module:
    """Return a model whose parameters differ by rank, until training makes them the same."""
    torch.manual_seed(rank())
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))


class Branches(nn.Module):
    """A model that uses only one of its layers in each pass. In the same pass, each rank uses a
    different layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(rank())
        self.layers = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
        self.passes = rank()

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.layers[self.passes % 3](data)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> Tensors:
    torch.manual_seed(100 + rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_parallel(model: nn.Module, hook: Any = None, **options: Any) -> Tensors:
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    return train(parallel, torch.optim.SGD(parallel.parameters(), lr=0.1))


def half_sum_hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / 2)


def reductions() -> Iterator[torch.Tensor]:
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)
    for op, dtype in itertools.product(ops, DTYPES):
        tensor = small_numbers(7, dtype)
        dist.all_reduce(tensor, op)
        yield tensor
        async_works = [
            dist.all_reduce(small_numbers(5, dtype, seed), op, async_op=True) for seed in range(3)
        ]
        for work in reversed(async_works):
            work.wait()
            assert work.is_completed()
            assert work.is_success()
        yield from (work.result()[0] for work in async_works)
        tensor = small_numbers(3, dtype)
        dist.reduce(tensor, 1, op)
        yield tensor if rank() == 1 else torch.zeros(1)
    tensors = [small_numbers(4, seed=1), small_numbers(3, seed=2)]
    dist.all_reduce_coalesced(tensors)
    yield from tensors
    columns = small_numbers(12).reshape(3, 4).t()
    dist.all_reduce(columns)
    yield columns
    complex_tensor = small_numbers(4, torch.complex64)
    dist.all_reduce(complex_tensor)
    yield complex_tensor


def bitwise_reductions() -> Iterator[torch.Tensor]:
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        for dtype in (torch.int32, torch.int64, torch.uint8):
            tensor = small_numbers(12, dtype).reshape(3, 4).t()
            dist.all_reduce(tensor, op)
            yield tensor
            tensor = small_numbers(3, dtype)
            dist.reduce(tensor, 1, op)
            yield tensor if rank() == 1 else torch.zeros(1)


def scattered_reductions() -> Iterator[torch.Tensor]:
    output = torch.empty(3)
    dist.reduce_scatter_single(output, small_numbers(3 * size()))
    yield output
    parts = [small_numbers(4, seed=other) for other in range(size())]
    output = torch.empty(4)
    dist.reduce_scatter(output, parts)
    yield output


def movements() -> Iterator[torch.Tensor]:
    for dtype, root in itertools.product(MOVABLE_DTYPES, range(size())):
        tensor = small_numbers(5, dtype)
        dist.broadcast(tensor, root)
        yield tensor
    for dtype in MOVABLE_DTYPES:
        outputs = [torch.empty(2, 3, dtype=dtype) for _ in range(size())]
        dist.all_gather(outputs, small_numbers(6, dtype).reshape(2, 3))
        yield from outputs
        output = torch.empty(3 * size(), dtype=dtype)
        dist.all_gather_single(output, small_numbers(3, dtype))
        yield output
        gathered = [torch.empty(3, dtype=dtype) for _ in range(size())] if rank() == 1 else None
        dist.gather(small_numbers(3, dtype), gathered, dst=1)
        yield from gathered or []
        parts = [small_numbers(2, dtype, seed) for seed in range(size())] if rank() == 1 else None
        output = torch.empty(2, dtype=dtype)
        dist.scatter(output, parts, src=1)
        yield output
        output = torch.empty(2 * size(), dtype=dtype)
        dist.all_to_all_single(output, small_numbers(2 * size(), dtype))
        yield output
    columns = small_numbers(12).reshape(3, 4).t()
    dist.broadcast(columns, 1)
    yield columns
    dist.barrier()


def uneven_exchange() -> Iterator[torch.Tensor]:
    """Rank r sends r + s rows of two elements to rank s."""
    row_counts = [rank() + other for other in range(size())]
    source = small_numbers(2 * sum(row_counts)).reshape(-1, 2)
    output = torch.empty_like(source)
    dist.all_to_all_single(output, source, row_counts, row_counts)
    yield output


def messages() -> Iterator[torch.Tensor]:
    next_rank, previous_rank = (rank() + 1) % size(), (rank() - 1) % size()
    received = torch.empty(5, dtype=torch.int64)
    send_work = dist.isend(small_numbers(5, torch.int64), next_rank, tag=3)
    assert dist.recv(received, previous_rank, tag=3) == previous_rank
    send_work.wait()
    yield received
    received_tensors = [torch.empty(2) for _ in range(2)]
    operations = [
        dist.P2POp(dist.isend, small_numbers(2, seed=1), next_rank),
        dist.P2POp(dist.irecv, received_tensors[0], previous_rank),
        dist.P2POp(dist.isend, small_numbers(2, seed=2), previous_rank),
        dist.P2POp(dist.irecv, received_tensors[1], next_rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    yield from received_tensors
    yield from messages_of_all_pairs()
    yield from messages_from_any_rank()
    objects_sent = [{"from": 0}, "x" * 20_000]
    if rank() == 0:
        dist.send_object_list(objects_sent, dst=size() - 1)
    elif rank() == size() - 1:
        received_objects: list[Any] = [None, None]
        dist.recv_object_list(received_objects, src=0)
        assert received_objects == objects_sent


def messages_of_all_pairs() -> Iterator[torch.Tensor]:
    """Yield messages of several tags and sizes between all pairs. They are received in another
    order than they were sent."""
    other_ranks = [other for other in range(size()) if other != rank()]
    counts = (0, 3, 70_000)
    send_works = [
        dist.isend(small_numbers(count, seed=tag), other, tag=tag)
        for other in other_ranks
        for tag, count in enumerate(counts)
    ]
    outputs = {(o, tag): torch.empty(counts[tag]) for o in other_ranks for tag in (2, 0, 1)}
    receive_works = [dist.irecv(output, o, tag=tag) for (o, tag), output in outputs.items()]
    for work in [*receive_works[::-1], *send_works]:
        work.wait()
    yield from outputs.values()


def messages_from_any_rank() -> Iterator[torch.Tensor]:
    if rank() > 0:
        dist.send(small_numbers(4), 0, tag=8)
        return
    received_by_source = {}
    for _ in range(1, size()):
        received = torch.empty(4)
        received_by_source[dist.recv(received, tag=8)] = received
    assert sorted(received_by_source) == list(range(1, size()))
    yield from (received_by_source[source] for source in sorted(received_by_source))


def pipelines() -> Iterator[torch.Tensor]:
    for schedule_class in (pipelining.ScheduleGPipe, pipelining.Schedule1F1B):
        torch.manual_seed(rank())
        layer = nn.Linear(6, 6)
        stage = pipelining.PipelineStage(layer, rank(), size(), torch.device("cpu"))
        schedule = schedule_class(stage, 2 * size(), loss_fn=nn.functional.mse_loss)
        data = [torch.ones(4 * size(), 6)] if rank() == 0 else []
        target = torch.zeros(4 * size(), 6) if rank() == size() - 1 else None
        schedule.step(*data, target=target)
        yield from (parameter.grad for parameter in layer.parameters())


def objects() -> Iterator[torch.Tensor]:
    all_objects: list[Any] = [None] * size()
    dist.all_gather_object(all_objects, {"rank": rank(), "text": "x" * rank()})
    assert all_objects == [{"rank": r, "text": "x" * r} for r in range(size())]
    from_rank_1 = [rank(), "a"] if rank() == 1 else [None, None]
    dist.broadcast_object_list(from_rank_1, src=1)
    assert from_rank_1 == [1, "a"]
    gathered: list[Any] | None = [None] * size() if rank() == 0 else None
    dist.gather_object({rank()}, gathered, dst=0)
    assert gathered is None or gathered == [{r} for r in range(size())]
    received: list[Any] = [None]
    dist.scatter_object_list(received, list("abcdefgh")[: size()] if rank() == 0 else None, src=0)
    assert received == ["abcdefgh"[rank()]]
    yield torch.zeros(1)


def groups() -> Iterator[torch.Tensor]:
    """Use a group for each pair of ranks, and one for all ranks. Calls of all these groups are in
    flight at the same time."""
    pairs = [dist.new_group(pair) for pair in itertools.combinations(range(size()), 2)]
    all_ranks = dist.new_group()
    tensors, works = [], []
    for group in [all_ranks, *pairs]:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            tensors.append(small_numbers(4, seed=len(tensors)))
            works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
    whole_tensor = small_numbers(4, seed=99)
    dist.all_reduce(whole_tensor)
    for work in works:
        work.wait()
    yield from [*tensors, whole_tensor]
    for pair, group in zip(itertools.combinations(range(size()), 2), pairs, strict=True):
        if rank() in pair:
            assert dist.get_process_group_ranks(group) == list(pair)
            tensor = small_numbers(3)
            dist.broadcast(tensor, pair[1], group=group)
            yield tensor
            dist.destroy_process_group(group)


def functional_collectives() -> Iterator[torch.Tensor]:
    world = dist.group.WORLD
    yield functional.all_reduce(small_numbers(4), "sum", world) + 0
    yield functional.all_reduce(small_numbers(4), "max", world) + 0
    yield functional.all_gather_tensor(small_numbers(3), 0, world) + 0
    yield functional.reduce_scatter_tensor(small_numbers(2 * size()), "sum", 0, world) + 0
    yield functional.all_to_all_single(small_numbers(size()), None, None, world) + 0
    yield functional.broadcast(small_numbers(3), 1, world) + 0
    coalesced = functional.all_reduce_coalesced(
        [small_numbers(2), small_numbers(3, seed=1)], "sum", world
    )
    yield from (tensor + 0 for tensor in coalesced)


def data_parallel() -> Iterator[torch.Tensor]:
    yield from train_parallel(network())
    yield from train_parallel(network(), gradient_as_bucket_view=True)
    yield from train_parallel(network(), static_graph=True)
    yield from train_parallel(network(), find_unused_parameters=True)
    yield from train_parallel(Branches(), find_unused_parameters=True)
    yield from train_parallel(network(), default_hooks.fp16_compress_hook)
    yield from train_parallel(network(), default_hooks.allreduce_hook)
    yield from train_parallel(network(), half_sum_hook)


def joined_training() -> Iterator[torch.Tensor]:
    """Train with torch's Join context: the ranks have different numbers of batches."""
    parallel = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    with Join([parallel]):
        yield from train(parallel, optimizer, steps=2 + rank())
    with parallel.join(divide_by_initial_world_size=False):
        yield from train(parallel, optimizer, steps=2 + rank())


def accumulated_training() -> Iterator[torch.Tensor]:
    parallel = DistributedDataParallel(network())
    with parallel.no_sync():
        parallel(torch.ones(2, 6)).sum().backward()
    parallel(torch.ones(2, 6)).sum().backward()
    for parameter in parallel.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def sharded_optimizer() -> Iterator[torch.Tensor]:
    parallel = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.Adam, lr=0.01)
    yield from train(parallel, optimizer)
    optimizer.consolidate_state_dict(to=0)


def sharded_model() -> Iterator[torch.Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.Linear(5, 3))
    mesh = init_device_mesh("cpu", (size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for parameter in model.parameters():
        yield parameter.full_tensor().detach()


def outcome(backend: str, scenario: Callable[[], Iterator[torch.Tensor]]) -> Tensors:
    init_process_group(backend)
    try:
        return [tensor.clone() for tensor in scenario()]
    finally:
        gc.collect()  # frees models that use the group
        dist.destroy_process_group()


def compare(scenario: Callable[[], Iterator[torch.Tensor]]) -> None:
    gloo_results, own_results = outcome("gloo", scenario), outcome("farandole", scenario)
    assert len(gloo_results) == len(own_results) > 0
    for number, (expected, actual) in enumerate(zip(gloo_results, own_results, strict=True)):
        result_name = f"{scenario.__name__}, result {number}"
        torch.testing.assert_close(
            actual, expected, msg=lambda text, result_name=result_name: f"{result_name}: {text}"
        )


class InterruptedHandle:
    """A handle whose wait() raises `error`. Until the test sets `error`, wait() raises a
    KeyboardInterrupt, as after Ctrl-C."""

    error: Exception | None = None

    def poll(self) -> bool:
        return self.error is not None

    def wait(self) -> None:
        raise self.error or KeyboardInterrupt


class MultiHostChecks:
    """Checks without Gloo. They also run where a process can use Gloo only once: over several
    hosts, and under torchrun."""

    def check_calls_that_gloo_does_not_have(self) -> None:
        init_process_group("farandole")
        ranks = range(size())
        tensor = torch.full((3,), float(rank()))
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert tensor.tolist() == [sum(ranks) / size()] * 3
        tensor = torch.full((3,), float(rank()))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        assert tensor.tolist() == [sum(ranks) / 2] * 3
        outputs = [torch.empty(other + 1) for other in ranks]
        dist.all_gather(outputs, torch.full((rank() + 1,), float(rank())))
        assert [output.tolist() for output in outputs] == [[float(o)] * (o + 1) for o in ranks]
        output = torch.empty(rank() + 1)
        dist.reduce_scatter(output, [torch.full((o + 1,), 1.0) for o in ranks])
        assert output.tolist() == [float(size())] * (rank() + 1)
        for dtype in (torch.bool, torch.complex64, torch.bfloat16, torch.float8_e4m3fn):
            parts = [small_numbers(4, dtype=torch.float32, seed=other).to(dtype) for other in ranks]
            output, gathered = torch.empty(4, dtype=dtype), torch.empty(4 * size(), dtype=dtype)
            dist.scatter(output, parts if rank() == 0 else None, src=0)
            dist.all_gather_single(gathered, output)
            dist.broadcast(expected := torch.cat(parts), 0)
            assert torch.equal(gathered.view(torch.uint8), expected.view(torch.uint8)), dtype
        with dist._coalescing_manager():
            tensors = [torch.full((2,), float(n)) for n in range(3)]
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert [tensor[0].item() for tensor in tensors] == [float(n * size()) for n in range(3)]
        dist.destroy_process_group()

    def check_properties_that_torch_reads(self) -> None:
        """torch reads these properties of a group in batch_isend_irecv(), for meshes and for
        checkpoints.

        torch reads some of them only since version 2.14.
        """
        init_process_group("farandole")
        group = dist.group.WORLD
        assert group is not None
        assert group._device_types == [torch.device("cpu")]
        backend = group._get_backend(torch.device("cpu"))
        assert (backend.supports_coalescing, backend.supports_splitting) == (False, False)
        assert not backend.supports_tensor_alloc(torch.device("cpu"))
        dist.destroy_process_group()

    def check_a_mesh_with_two_dimensions(self) -> None:
        init_process_group("farandole")
        rows = 2 if size() % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (rows, size() // rows), mesh_dim_names=("row", "column"))
        rank_grid = torch.arange(size()).reshape(rows, -1)
        row, column = divmod(rank(), size() // rows)
        for name, ranks in {"row": rank_grid[:, column], "column": rank_grid[row]}.items():
            tensor = torch.tensor([rank()])
            dist.all_reduce(tensor, group=mesh.get_group(name))
            assert tensor.item() == ranks.sum().item(), name
        dist.destroy_process_group()

    def check_scattered_bitwise_reductions(self) -> None:
        init_process_group("farandole")
        bits = torch.arange(size()) + 4 * rank() + 1
        inputs = [torch.tensor(rank() + 4 * other + 1) for other in range(size())]
        for op, function in (
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ):
            output = torch.empty(1, dtype=torch.int64)
            dist.reduce_scatter_tensor(output, bits.clone(), op)
            assert output.item() == functools.reduce(function, inputs).item()
        dist.destroy_process_group()

    def check_an_asynchronous_checkpoint(self) -> None:
        init_process_group("farandole")
        folder: list[Any] = [tempfile.mkdtemp() if rank() == 0 else None]
        dist.broadcast_object_list(folder, src=0)
        saved_state = {"weight": small_numbers(5) + 1}
        dist.broadcast(saved_state["weight"], 0)
        checkpoint.async_save(saved_state, checkpoint_id=folder[0]).result()
        dist.barrier()
        loaded = {"weight": torch.zeros(5)}
        checkpoint.load(loaded, checkpoint_id=folder[0])
        assert torch.equal(loaded["weight"], saved_state["weight"])
        dist.barrier()
        if rank() == 0:
            shutil.rmtree(folder[0])
        dist.destroy_process_group()

    def check_order_of_waiting_does_not_matter(self) -> None:
        """The order in which each rank makes its calls decides which calls belong together. The
        order of the waits does not matter."""
        init_process_group("farandole")
        first_tensor, second_tensor = torch.ones(2), torch.full((2,), 2.0)
        work = dist.all_reduce(first_tensor, async_op=True)
        if rank() == 0:
            work.wait()
        dist.all_reduce(second_tensor)
        work.wait()
        assert (first_tensor[0].item(), second_tensor[0].item()) == (size(), 2.0 * size())
        dist.destroy_process_group()

    def check_futures(self) -> None:
        init_process_group("farandole")
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        assert future.wait()[0].tolist() == [float(size())] * 2
        assert future.done()
        dist.destroy_process_group()

    def check_errors_do_not_break_later_calls(self) -> None:
        init_process_group("farandole")
        failing_work = dist.all_reduce(torch.ones(2 + rank()), async_op=True)
        with pytest.raises(hvd.CallError, match=r"torch\.group0"):
            failing_work.wait()
        assert isinstance(failing_work.exception(), hvd.CallError)
        assert not failing_work.is_success()
        with pytest.raises(hvd.CallError):
            dist.all_reduce(torch.ones(2 + rank()), async_op=True).get_future().wait()
        with pytest.raises(hvd.CallError, match=r"bitwise_and needs .* got torch\.float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
        with pytest.raises(hvd.CallError, match="PREMUL_SUM by a tensor"):
            dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(torch.ones(1)))
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor[0] == size()
        dist.destroy_process_group()

    def check_a_call_that_one_rank_cannot_make(self) -> None:
        """One rank cannot make a call, so the call fails on all ranks. All ranks count the call, so
        that later calls still match."""
        init_process_group("farandole")
        makes_mistake, count, sum_op = rank() == 0, size() * 2, dist.ReduceOp.SUM
        splits = [9] * size() if makes_mistake else [2] * size()
        output, valid_input = torch.ones(2), torch.ones(count)
        own_input = torch.ones(count + 1) if makes_mistake and size() > 1 else valid_input
        calls: list[tuple[str, Callable[[], object]]] = [
            (
                "split",
                lambda: dist.all_to_all_single(valid_input.clone(), valid_input, None, splits),
            ),
            ("elements", lambda: dist.reduce_scatter_tensor(output.clone(), own_input)),
            (
                "bitwise_and",
                lambda: dist.all_reduce(output, dist.ReduceOp.BAND if makes_mistake else sum_op),
            ),
            (
                "expanded",
                lambda: dist.all_reduce(output[:1].expand(2) if makes_mistake else output.clone()),
            ),
        ]
        for _ in range(2):
            for text, call in calls:
                if size() == 1 and text == "elements":
                    continue
                with pytest.raises((RuntimeError, TypeError), match=text):
                    call()
                tensor = torch.full((2,), 10.0)
                dist.all_reduce(tensor)
                assert tensor.tolist() == [10.0 * size()] * 2, text
        dist.destroy_process_group()

    def check_an_error_in_backward(self) -> None:
        """A call within backward() fails. backward() raises the error, and no rank hangs."""
        init_process_group("farandole")

        def send_unequal_bucket(
            _state: object, bucket: dist.GradBucket
        ) -> torch.futures.Future[torch.Tensor]:
            work = dist.all_reduce(bucket.buffer()[rank() :].clone(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        with pytest.raises(RuntimeError, match=r"torch\.group0"):
            train_parallel(network(), send_unequal_bucket)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor == size()
        dist.destroy_process_group()

    def check_an_error_that_is_there_before_backward_waits(self) -> None:
        """A call of DistributedDataParallel has failed before backward() waits for it.
        DistributedDataParallel must not treat the error as a result."""
        init_process_group("farandole")
        original_allreduce = ProcessGroup.allreduce

        def start_unequal(self: ProcessGroup, tensors: Tensors, options: Any) -> Work:
            work = original_allreduce(
                self, [tensor[rank() :].clone() for tensor in tensors], options
            )
            while not work.is_completed():
                pass
            return work

        with (
            mock.patch.object(ProcessGroup, "allreduce", start_unequal),
            pytest.raises(hvd.CallError, match=r"torch\.group0"),
        ):
            train_parallel(network())
        dist.all_reduce(tensor := torch.ones(1))
        assert tensor == size()
        dist.destroy_process_group()

    def check_a_backward_that_raises_leaves_nothing_behind(self) -> None:
        init_process_group("farandole")

        def backward(count: int, error: Exception | None) -> None:
            def hook(_gradient: torch.Tensor) -> None:
                dist.all_reduce(torch.ones(count), async_op=True).get_future()
                hvd.barrier()  # the other ranks make the allreduce after this barrier
                if error is not None:
                    raise error

            data = torch.ones(2, requires_grad=True) * 1
            data.register_hook(hook)
            data.sum().backward()

        if rank() == 0:
            with pytest.raises(ValueError, match="of the hook"):
                backward(2, ValueError("of the hook"))
            backward(3, None)
        else:
            hvd.barrier()
            with pytest.raises(hvd.CallError):
                dist.all_reduce(torch.ones(3), async_op=True).wait()
            hvd.barrier()
            dist.all_reduce(torch.ones(3))
        assert not _callbacks_by_pass
        dist.destroy_process_group()

    def check_an_interrupted_wait_completes_nothing(self) -> None:
        handle = InterruptedHandle()
        work = Work(handle, [torch.ones(1)])  # type: ignore[arg-type]
        for interrupted in (work.get_future, work.wait, work.get_future):
            with pytest.raises(KeyboardInterrupt):
                interrupted()
        handle.error = ValueError("unlike those of the engine")
        assert work.exception() is handle.error
        with pytest.raises(ValueError, match="unlike those"):
            work.get_future().wait()

    def check_groups_are_made_and_destroyed(self) -> None:
        for _ in range(12):
            init_process_group("farandole")
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor == size()
            dist.destroy_process_group()
            assert not hvd.is_initialized()

    def check_an_engine_of_the_program_is_kept(self) -> None:
        hvd.init()
        init_process_group("farandole")
        assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert hvd.allreduce(tensor, op=hvd.Sum) == size() * size()
        dist.destroy_process_group()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
        hvd.shutdown()

    def check_training(self) -> None:
        init_process_group("farandole")
        for trained in (train_parallel(network()), list(sharded_model())):
            parameters = torch.cat([parameter.reshape(-1) for parameter in trained])
            largest = parameters.clone()
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            assert torch.equal(parameters, largest)
        gc.collect()
        dist.destroy_process_group()


class ChecksWithoutGloo(MultiHostChecks):
    def check_the_init_method_farandole(self) -> None:
        dist.init_process_group("farandole", init_method="farandole://")
        assert dist.get_world_size() == size()
        dist.destroy_process_group()
        assert not hvd.is_initialized()


class MessageChecks:
    def check_messages(self) -> None:
        compare(messages)

    def check_pipelines(self) -> None:
        compare(pipelines)


class DistributedChecks(MessageChecks, ChecksWithoutGloo):
    def check_gloo_finds_its_ranks_through_the_engine(self) -> None:
        init_process_group("gloo")
        assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
        dist.barrier()  # no rank may end while others still connect to it
        dist.destroy_process_group()
        hvd.shutdown()

    def check_the_variables_of_our_launcher(self) -> None:
        """The variables that `farandole run` sets are enough for torch's env://, even if the
        program makes one group after another."""
        for _ in range(5):
            dist.init_process_group("farandole")
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor == size() == int(os.environ["WORLD_SIZE"])
            dist.destroy_process_group()
            assert not hvd.is_initialized()

    def check_groups_beside_gloo(self) -> None:
        """The engine ends with the last group that uses it."""
        init_process_group("gloo")
        hvd.shutdown()
        first_group, second_group = (dist.new_group(backend="farandole") for _ in range(2))
        dist.destroy_process_group(first_group)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=second_group)
        assert tensor == size()
        dist.all_reduce(tensor, group=dist.new_group([rank()], backend="farandole"))
        assert tensor == size()
        dist.destroy_process_group()
        assert not hvd.is_initialized()

    def check_reductions(self) -> None:
        compare(reductions)

    def check_bitwise_reductions(self) -> None:
        compare(bitwise_reductions)

    def check_scattered_reductions(self) -> None:
        compare(scattered_reductions)

    def check_movements(self) -> None:
        compare(movements)

    def check_uneven_exchange(self) -> None:
        compare(uneven_exchange)

    def check_objects(self) -> None:
        compare(objects)

    def check_groups(self) -> None:
        compare(groups)

    def check_functional_collectives(self) -> None:
        compare(functional_collectives)

    def check_data_parallel(self) -> None:
        compare(data_parallel)

    def check_joined_training(self) -> None:
        compare(joined_training)

    def check_accumulated_training(self) -> None:
        compare(accumulated_training)

    def check_sharded_optimizer(self) -> None:
        compare(sharded_optimizer)

    def check_sharded_model(self) -> None:
        compare(sharded_model)
