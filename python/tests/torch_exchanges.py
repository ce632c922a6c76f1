"""Checks of torch.distributed: exchanges of rows, lists of the wrong length, coalesced gathers,
sparse tensors, and groups that are also process sets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_distributed import compare, init_process_group, rank, size, small_numbers

import farandole.torch as hvd

Tensors = list[torch.Tensor]
STEPS = 4


def row_exchanges() -> Iterator[torch.Tensor]:
    """Yield the results of all_to_all_single for rows of several elements."""
    for shape in ((2 * size(), 3), (size(), 2, 2), (0, 3)):
        source = small_numbers(torch.Size(shape).numel()).reshape(shape)
        output = torch.empty_like(source)
        dist.all_to_all_single(output, source)
        yield output
    columns = small_numbers(6 * size()).reshape(3, 2 * size()).t()
    output = torch.empty(columns.shape)
    dist.all_to_all_single(output, columns.contiguous(), None, [2] * size())
    yield output


def coalesced_gathers() -> Iterator[torch.Tensor]:
    shapes = ((2, 3), (1,), (5,))
    inputs = [small_numbers(torch.Size(s).numel(), seed=9).reshape(s) for s in shapes]
    for is_async in (False, True):
        outputs = [[torch.empty(shape) for shape in shapes] for _ in range(size())]
        future = dist.all_gather_coalesced(outputs, inputs, async_op=is_async)
        if is_async:
            future.wait()
        for tensors in outputs:
            yield from tensors


def sparse_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a sparse tensor of whole numbers with two sparse dimensions. Each rank has another
    number of elements, and stores each element twice."""
    count = 2 + rank()
    indices = torch.stack([small_numbers(count, torch.int64, seed) for seed in (1, 2)])
    values = small_numbers(count * torch.Size(shape[2:]).numel(), dtype, seed=3) + 1
    indices, values = (
        indices.repeat(1, 2),
        values.reshape(count, *shape[2:]).repeat(2, *(1 for _ in shape[2:])),
    )
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def sparse_sums() -> Iterator[torch.Tensor]:
    for shape in ((4, 5), (6, 4, 3)):
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
            tensor = sparse_tensor(shape, dtype)
            dist.all_reduce(tensor)
            assert tensor.layout is torch.sparse_coo
            yield tensor.to_dense()
    own_tensor = sparse_tensor((4, 5)) if rank() == 0 else torch.zeros(4, 5).to_sparse()
    dist.all_reduce(own_tensor)
    yield own_tensor.to_dense()


class EmbeddingBagModel(nn.Module):
    """A model with a sparse gradient between dense ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bag = nn.EmbeddingBag(20, 8, sparse=True, mode="sum")
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.bag(words))


def loss_of(model: nn.Module, step: int, of_rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + of_rank)
    words = torch.randint(0, 20, (3 + of_rank, 4), generator=generator)
    return model(words).square().mean()


def parameters_after_training(parallel: nn.Module, model: nn.Module, ranks: list[int]) -> Tensors:
    """Train `parallel` with the mean of the losses of these ranks. Return the parameters of
    `model`, which `parallel` wraps."""
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of(parallel, step, each) for each in ranks]).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def sparse_training() -> Iterator[torch.Tensor]:
    model = EmbeddingBagModel()
    reference = copy.deepcopy(model)
    expected = parameters_after_training(reference, reference, list(range(size())))
    actual = parameters_after_training(DistributedDataParallel(model), model, [rank()])
    assert isinstance(model.bag.weight.grad, torch.Tensor)
    assert model.bag.weight.grad.layout is torch.sparse_coo
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)
    yield from actual


def expect_error_everywhere(text: str, call: Callable[[], object]) -> None:
    """Check that the call raises CallError, and that later calls still match."""
    with pytest.raises(hvd.CallError, match=text):
        call()
    dist.all_reduce(tensor := torch.full((2,), 10.0))
    assert tensor.tolist() == [10.0 * size()] * 2, text


def empty_tensors(count: int) -> Tensors:
    return [torch.zeros(2) for _ in range(count)]


class ExchangeChecks:
    def check_exchanges_of_rows(self) -> None:
        compare(row_exchanges)

    def check_coalesced_gathers(self) -> None:
        compare(coalesced_gathers)

    def check_sparse_sums(self) -> None:
        compare(sparse_sums)

    def check_sparse_training(self) -> None:
        compare(sparse_training)

    def check_rows_are_not_cut(self) -> None:
        init_process_group("farandole")
        rows = size() + 1
        all_rows = torch.arange(float(rows * 2 * size())).reshape(rows, -1)
        halves = [rows] + [0] * (size() - 1)
        if size() > 1:
            for splits in ((None, None), (halves, None), (None, halves)):
                output = torch.zeros_like(all_rows)
                expect_error_everywhere(
                    "cannot be divided evenly",
                    lambda output=output, splits=splits: dist.all_to_all_single(
                        output, all_rows, *splits
                    ),
                )
                assert not output.any()
        dist.destroy_process_group()

    def check_dtypes_that_differ(self) -> None:
        """One rank gives another dtype of the same size. The call fails on all ranks."""
        init_process_group("farandole")
        group: Any = dist.group.WORLD
        other_dtype_output = torch.zeros(
            2 * size(), dtype=torch.int32 if rank() == 0 else torch.float32
        )
        outputs = list(other_dtype_output.clone().split(2))
        output, inputs = torch.ones(2), list(torch.ones(2 * size()).split(2))
        calls: list[Callable[[], object]] = [
            lambda: dist.all_gather_into_tensor(other_dtype_output, output),
            lambda: group.all_gather_single_coalesced([other_dtype_output], [output]).wait(),
            lambda: group.allgather([outputs], [output]).wait(),
            lambda: group.allgather_coalesced([[o] for o in outputs], [output]).wait(),
            lambda: group.alltoall(outputs, inputs).wait(),
            lambda: group.alltoall_base(other_dtype_output, torch.ones(2 * size()), [], []).wait(),
            lambda: group.reduce_scatter(
                [outputs[0]], [inputs], dist.distributed_c10d.ReduceScatterOptions()
            ).wait(),
            lambda: group.gather(
                [outputs] if rank() == 0 else [], [output], dist.GatherOptions()
            ).wait(),
            lambda: group.scatter(
                [output], [outputs] if rank() == 0 else [], dist.ScatterOptions()
            ).wait(),
        ]
        for call in calls:
            expect_error_everywhere("dtype", call)
        expect_error_everywhere(
            "dtype", lambda: dist.reduce_scatter_tensor(output, other_dtype_output)
        )
        assert not other_dtype_output.any()
        assert not torch.cat(outputs).any()
        dist.destroy_process_group()

    def check_lists_of_the_wrong_length(self) -> None:
        """One rank gives too few or too many tensors. No rank gets anything."""
        init_process_group("farandole")
        part = torch.ones(2)
        for value in (size() - 1, size() + 1):
            count = value if rank() == 0 else size()
            outputs, inputs = empty_tensors(count), [part] * size()
            too_many_inputs, by_rank = [part] * count, [[output] for output in outputs]
            own_tensors = (outputs, too_many_inputs) if rank() == 0 else (None, None)
            calls: list[Callable[[], object]] = [
                lambda outputs=outputs: dist.all_gather(outputs, part),
                lambda own_tensors=own_tensors: dist.gather(part, own_tensors[0], dst=0),
                lambda outputs=outputs, inputs=inputs: dist.all_to_all(outputs, inputs),
                lambda too_many_inputs=too_many_inputs: dist.all_to_all(
                    empty_tensors(size()), too_many_inputs
                ),
                lambda too_many_inputs=too_many_inputs: dist.reduce_scatter(
                    torch.zeros(2), too_many_inputs
                ),
                lambda own_tensors=own_tensors: dist.scatter(torch.zeros(2), own_tensors[1], src=0),
                lambda by_rank=by_rank: dist.all_gather_coalesced(by_rank, [part]),
            ]
            for call in calls:
                expect_error_everywhere(f"got {value} .* a group of {size()} ranks", call)
            assert not any(output.any() for output in outputs)
        lists = [empty_tensors(1 if rank() == 0 else 2) for _ in range(size())]
        text = "lists of different lengths"
        expect_error_everywhere(text, lambda: dist.all_gather_coalesced(lists, [part, part]))
        world: Any = dist.group.WORLD
        whole_inputs = [torch.zeros(2 * size())] * 2
        short_inputs = whole_inputs[:1] if rank() == 0 else whole_inputs
        unequal_outputs = empty_tensors(1 if rank() == 0 else 2)
        gather_options, options = (
            dist.distributed_c10d.AllgatherOptions(),
            dist.distributed_c10d.ReduceScatterOptions(),
        )
        for gather_or_reduce in (
            lambda: world.all_gather_single_coalesced(
                short_inputs, [part, part], gather_options
            ).wait(),
            lambda: world.reduce_scatter_single_coalesced(
                unequal_outputs, whole_inputs, options
            ).wait(),
        ):
            expect_error_everywhere(f"{text}|rejected|rank 0", gather_or_reduce)
        dist.destroy_process_group()

    def check_means_of_sparse_tensors(self) -> None:
        init_process_group("farandole")
        total, mean = sparse_tensor((6, 4, 3)), sparse_tensor((6, 4, 3))
        dense = total.to_dense()
        dist.all_reduce(total)
        dist.all_reduce(dense)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert torch.equal(total.to_dense(), dense)
        torch.testing.assert_close(mean.to_dense(), dense / size())
        dist.reduce(rooted := sparse_tensor((6, 4, 3)), 0)
        own_mean = dense if rank() == 0 else sparse_tensor((6, 4, 3)).to_dense()
        assert torch.equal(rooted.to_dense(), own_mean)
        group_of_one = dist.new_group([rank()], use_local_synchronization=True)
        dist.all_reduce(own_tensor := sparse_tensor((4, 5)), group=group_of_one)
        assert torch.equal(own_tensor.to_dense(), sparse_tensor((4, 5)).to_dense())
        dist.destroy_process_group()

    def check_sparse_tensors_that_do_not_fit(self) -> None:
        init_process_group("farandole")
        tensor = sparse_tensor((4, 5))
        dense_before = tensor.to_dense()
        for op in (dist.ReduceOp.MAX, dist._make_nccl_premul_sum(0.5)):
            expect_error_everywhere(
                "needs the op SUM or AVG", lambda op=op: dist.all_reduce(tensor, op)
            )
        for call in (
            lambda: dist.broadcast(tensor, 0),
            lambda: dist.all_gather([tensor] * size(), tensor),
            lambda: dist.all_reduce(torch.ones(2, 2).to_sparse_csr()),
        ):
            expect_error_everywhere("sparse=False", call)
        if size() > 1:
            for other_tensor in (
                sparse_tensor((4, 6)),
                dense_before.double().to_sparse(),
                dense_before.to_sparse(1),
            ):
                own_tensor = other_tensor if rank() == 0 else tensor
                expect_error_everywhere(
                    "differ", lambda own_tensor=own_tensor: dist.all_reduce(own_tensor)
                )
            with pytest.raises(hvd.CallError):
                dist.all_reduce(dense_before.clone() if rank() == 0 else tensor)
        assert torch.equal(tensor.to_dense(), dense_before)
        dist.destroy_process_group()


class SharedGroupChecks:
    def check_a_group_of_torch_as_a_process_set(self) -> None:
        """torch makes a group, and the program then adds and removes a process set with the same
        ranks. The group must still work."""
        hvd.init()
        init_process_group("farandole")
        members = list(range(size() - 1))
        group = dist.new_group(members)
        for _ in range(2):
            process_set = hvd.add_process_set(members)
            with pytest.raises(hvd.CallError, match="exists already"):
                hvd.add_process_set(members)
            self.expect_group_works(process_set, group)
            assert hvd.remove_process_set(process_set)
            assert process_set.process_set_id is None
            self.expect_torch_works(group)
        with pytest.raises(hvd.CallError, match="the ranks ask for different changes"):
            hvd.add_process_set(members if rank() == 0 else [size() - 1])
        dist.destroy_process_group()
        hvd.shutdown()

    def check_a_process_set_that_torch_uses(self) -> None:
        """The program adds a process set, and torch then makes a group with the same ranks."""
        if hvd.is_initialized():
            hvd.shutdown()
        members = list(range(size_of_job() - 1))
        process_set = hvd.ProcessSet(members)
        hvd.init(process_sets=[process_set])
        init_process_group("farandole")
        group = dist.new_group(members)
        self.expect_group_works(process_set, group)
        assert hvd.remove_process_set(process_set)
        assert not hvd.remove_process_set(process_set)
        self.expect_torch_works(group)
        self.expect_torch_works(dist.new_group(members))
        assert hvd.add_process_set(process_set) is process_set
        self.expect_group_works(process_set, group)
        dist.destroy_process_group()
        hvd.shutdown()

    def expect_group_works(self, process_set: hvd.ProcessSet, group: Any) -> None:
        if process_set.included():
            values = torch.arange(5.0) + rank()
            total = hvd.allreduce(values, op=hvd.Sum, process_set=process_set)
            expected = sum(torch.arange(5.0) + member for member in process_set.ranks)
            assert torch.equal(total, expected)
        self.expect_torch_works(group)

    def expect_torch_works(self, group: Any) -> None:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(values := torch.arange(5.0) + rank(), group=group)
            members = dist.get_process_group_ranks(group)
            assert torch.equal(values, sum(torch.arange(5.0) + member for member in members))


def size_of_job() -> int:
    hvd.init()
    count = hvd.size()
    hvd.shutdown()
    return count
