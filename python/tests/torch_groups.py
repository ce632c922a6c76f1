"""Checks of groups with several backends, and of groups that only their members make."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.fsdp import fully_shard
from torch_distributed import init_process_group, rank, size, train

import farandole.torch as hvd

MEMBERS_ALONE: dict[str, Any] = {"use_local_synchronization": True}


def backend_of(group: Any) -> str:
    """Return the class name of the backend that makes the calls on tensors in host memory."""
    return type(group._get_backend(torch.device("cpu"))).__name__


def sum_of_ones(group: Any) -> float:
    dist.all_reduce(tensor := torch.ones(1), group=group)
    return tensor.item()


class MemberGroupChecks:
    def check_a_group_that_only_its_members_make(self) -> None:
        """Ranks may have made different numbers of earlier groups. torch's name for a group
        contains this number, so the ranks may have different names for one group."""
        init_process_group("farandole")
        if rank() == 0:
            assert sum_of_ones(dist.new_group([0], **MEMBERS_ALONE)) == 1
        for _ in range(2):
            members = list(range(size() - 1, 0, -1)) or [0]
            if rank() in members:
                group = dist.new_group(members, **MEMBERS_ALONE)
                assert sum_of_ones(group) == len(members)
                self.expect_calls(group, sorted(members))
        world_group = dist.new_group(**MEMBERS_ALONE)
        assert sum_of_ones(world_group) == sum_of_ones(None) == size()
        if hvd.size() > 1:  # torch uses the process set that all ranks have added
            process_set = hvd.add_process_set([0])
            if rank() == 0:
                group = dist.new_group([0], **MEMBERS_ALONE)
                assert group._group_number == process_set.process_set_id  # type: ignore[union-attr]
                assert sum_of_ones(group) == 1
        dist.destroy_process_group()

    def expect_calls(self, group: Any, members: list[int]) -> None:
        dist.broadcast(tensor := torch.tensor([rank()]), members[-1], group=group)
        assert tensor.item() == members[-1]
        gathered_ranks: list[Any] = [None] * len(members)
        dist.all_gather_object(gathered_ranks, rank(), group=group)
        assert gathered_ranks == members
        if len(members) > 1:
            next_rank = members[(members.index(rank()) + 1) % len(members)]
            previous_rank = members[members.index(rank()) - 1]
            send_work = dist.isend(torch.tensor([rank()]), next_rank, group=group)
            dist.recv(tensor, previous_rank, group=group)
            send_work.wait()
            assert tensor.item() == previous_rank
            with pytest.raises(hvd.CallError, match="the shape differs"):
                dist.all_reduce(torch.ones(1 + (rank() == members[0])), group=group)
        dist.barrier(group)

    def check_ranks_in_another_order(self) -> None:
        init_process_group("farandole")
        order = list(range(size()))[::-1]
        group = dist.new_group(order, sort_ranks=False)
        assert dist.get_rank(group) == order.index(rank())
        gathered = [torch.empty(1) for _ in order]
        dist.all_gather(gathered, torch.tensor([float(rank())]), group=group)
        assert [int(tensor) for tensor in gathered] == order
        dist.broadcast(tensor := torch.tensor([rank()]), 0, group=group)
        assert tensor.item() == 0
        dist.destroy_process_group(group)
        dist.destroy_process_group()

    def check_a_group_of_members_that_is_destroyed(self) -> None:
        init_process_group("farandole")
        descriptors = 0
        for number in range(6):
            group = dist.new_group([rank()], **MEMBERS_ALONE)
            assert sum_of_ones(group) == 1
            dist.destroy_process_group(group)
            if number == 1:
                descriptors = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        dist.destroy_process_group()


class GroupsOverHosts:
    """Checks of groups that only their members make, in a job on two hosts. The ranks 0 and 1 are
    on the first host. Rank 2 and, if there are four ranks, rank 3 are on the second host."""

    def check_a_group_over_both_hosts(self) -> None:
        init_process_group("farandole")
        for members in ([0, size() - 1], [size() - 1, 1], list(range(size()))[::-1]):
            if rank() in members:
                group = dist.new_group(members, sort_ranks=False, **MEMBERS_ALONE)
                expect_results(group, members)
                host_members = [member for member in members if (member < 2) == (rank() < 2)]
                assert group._engine.local_size == len(host_members)  # type: ignore[union-attr]
        if rank() in (0, 2):
            group = dist.new_group([0, 2], **MEMBERS_ALONE)
            with pytest.raises(hvd.CallError, match="the shape differs"):
                dist.all_reduce(torch.ones(1 + (rank() == 0)), group=group)
            expect_results(group, [0, 2])
        expect_results(dist.group.WORLD, range(size()))
        dist.destroy_process_group()

    def check_disjoint_groups_at_once(self) -> None:
        init_process_group("farandole")
        first_members = [0, 2]
        second_members = [member for member in range(size()) if member not in first_members]
        own_members = first_members if rank() in first_members else second_members
        groups = [dist.new_group(own_members, **MEMBERS_ALONE) for _ in range(2)]
        for _ in range(5):
            tensors = [torch.full((20_000,), float(rank() + number)) for number in range(2)]
            async_works = [
                dist.all_reduce(tensor, group=group, async_op=True)
                for tensor, group in zip(tensors, groups, strict=True)
            ]
            async_works.append(dist.all_reduce(total := torch.arange(20_000), async_op=True))
            for work in reversed(async_works):
                work.wait()  # type: ignore[union-attr]
            for number, tensor in enumerate(tensors):
                assert (tensor == sum(own_members) + number * len(own_members)).all()
            assert torch.equal(total, size() * torch.arange(20_000))
        for group in groups:
            expect_results(group, own_members)
        dist.destroy_process_group()

    def check_a_group_on_one_host_beside_a_group_over_both(self) -> None:
        init_process_group("farandole")
        host_members = [0, 1] if rank() < 2 else list(range(2, size()))
        host_group = dist.new_group(host_members, **MEMBERS_ALONE)
        cross_host_group = dist.new_group([1, 2], **MEMBERS_ALONE) if rank() in (1, 2) else None
        group_of_one = dist.new_group([rank()], **MEMBERS_ALONE)
        for _ in range(3):
            expect_results(host_group, host_members)
            if cross_host_group is not None:
                expect_results(cross_host_group, [1, 2])
            expect_results(group_of_one, [rank()])
            expect_results(dist.group.WORLD, range(size()))
        if cross_host_group is not None:
            dist.destroy_process_group(cross_host_group)
        expect_results(host_group, host_members)
        dist.destroy_process_group()

    def check_groups_that_are_made_and_destroyed(self) -> None:
        """Before the members make this group, they have made different numbers of other groups."""
        init_process_group("farandole")
        descriptors = 0
        for number in range(8):
            for members in ([0, 2], [1, size() - 1], list(range(size()))[::-1]):
                if rank() in members and (number % 2 == 0 or len(members) == 2):
                    group = dist.new_group(members, sort_ranks=False, **MEMBERS_ALONE)
                    expect_results(group, members)
                    dist.destroy_process_group(group)
            if number == 1:
                descriptors = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        dist.destroy_process_group()

    def check_groups_after_another_job(self) -> None:
        """In the next job, torch uses the same names of groups again, and the connection to the
        launcher is a new one."""
        for _ in range(3):
            init_process_group("farandole")
            if rank() in (0, 2):
                expect_results(dist.new_group([0, 2], **MEMBERS_ALONE), [0, 2])
            dist.barrier()
            dist.destroy_process_group()
            assert not hvd.is_initialized()

    def check_groups_beside_gloo(self) -> None:
        """The world uses Gloo, so there is only the engine of the group, and none of the whole
        job."""
        init_process_group("gloo")
        group = dist.new_group([0, 2], backend="farandole")
        assert not hvd.is_initialized()
        if rank() in (0, 2):
            expect_results(group, [0, 2])
        dist.barrier()  # this call uses Gloo
        dist.destroy_process_group()

    def check_a_group_that_the_engine_of_the_job_has(self) -> None:
        init_process_group("farandole")
        hvd.add_process_set([1, 2])
        if rank() in (1, 2):
            group = dist.new_group([1, 2], **MEMBERS_ALONE)
            assert group._engine is None  # type: ignore[union-attr]
            expect_results(group, [1, 2])
        dist.destroy_process_group()


class MeshOverHosts:
    """Checks of a mesh of 2 × 2 ranks in a job on two hosts: the rows are the hosts."""

    def check_a_mesh(self) -> None:
        init_process_group("farandole")
        for makes_all in (False, True):
            mesh = mesh_of_hosts(makes_all)
            row, column = rank() // 2 * 2, rank() % 2
            for _ in range(3):
                expect_results(mesh.get_group("within"), [row, row + 1])
                expect_results(mesh.get_group("across"), [column, column + 2])
        dist.destroy_process_group()

    def check_training_on_a_mesh(self) -> None:
        """fully_shard() shards within the hosts and replicates across them."""
        init_process_group("farandole")
        trained = [list(trained_parameters(mesh_of_hosts(False)))]
        trained.append(list(trained_parameters(device_mesh.init_device_mesh("cpu", (size(),)))))
        for on_mesh, on_all in zip(*trained, strict=True):
            assert torch.allclose(on_mesh, on_all, rtol=1e-5, atol=1e-6)
            dist.broadcast(root_values := on_mesh.clone(), 0)
            assert torch.equal(on_mesh, root_values)
        gc.collect()  # frees models that use the groups
        dist.destroy_process_group()


def expect_results(group: Any, members: Sequence[int]) -> None:
    """Check every element of the results of calls in a group."""
    position = members.index(rank())
    for count in (1, 1000, 300_000):
        base = torch.arange(count)
        dist.all_reduce(total := base * (position + 1), group=group)
        assert torch.equal(total, base * (len(members) * (len(members) + 1) // 2))
        root = members[-1]
        dist.broadcast(tensor := base + rank(), root, group=group)
        assert torch.equal(tensor, base + root)
        gathered = torch.empty(len(members) * count, dtype=torch.int64)
        dist.all_gather_into_tensor(gathered, base + rank(), group=group)
        assert torch.equal(gathered, torch.cat([base + member for member in members]))
        if len(members) > 1:
            next_member, previous_member = (
                members[(position + 1) % len(members)],
                members[position - 1],
            )
            send_work = dist.isend(base * rank(), next_member, group=group)
            dist.recv(tensor, previous_member, group=group)
            send_work.wait()  # type: ignore[union-attr]
            assert torch.equal(tensor, base * previous_member)
    dist.barrier(group)


@contextmanager
def make_groups_by_members() -> Iterator[None]:
    """Let each rank make only those groups of a mesh to which it belongs, as PyTorch did before
    version 2.13."""

    def new_group(**options: Any) -> Any:
        return dist.new_group(**{**options, **MEMBERS_ALONE})

    with mock.patch.object(device_mesh, "new_group", new_group):
        yield


def mesh_of_hosts(makes_all: bool) -> device_mesh.DeviceMesh:
    """Return a mesh. If `makes_all` is false, a rank makes only the groups to which it belongs."""
    names = ("across", "within")
    if makes_all:
        return device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    with make_groups_by_members():
        return device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def trained_parameters(mesh: device_mesh.DeviceMesh) -> Iterator[torch.Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for parameter in model.parameters():
        yield parameter.full_tensor().detach()  # type: ignore[attr-defined]


class MixedBackendChecks:
    def check_strings_of_backends(self) -> None:
        for text, expected in (
            ("cpu:gloo,cuda:farandole", "ProcessGroupGloo"),
            ("cuda:farandole,cpu:gloo", "ProcessGroupGloo"),
            ("cuda:gloo,cpu:farandole", "ProcessGroup"),
        ):
            init_process_group(text)
            self.expect_group(dist.group.WORLD, expected, size())
            self.expect_group(dist.new_group(), expected, size())
            group_of_one = dist.new_group([rank()], **MEMBERS_ALONE)
            self.expect_group(group_of_one, expected, 1)
            dist.destroy_process_group()

    def expect_group(self, group: Any, expected: str, members: int) -> None:
        assert backend_of(group) == expected
        assert {device.type for device in group._device_types} == {"cpu", "cuda"}
        assert sum_of_ones(group) == members
        ranks = dist.get_process_group_ranks(group)
        dist.broadcast(tensor := torch.tensor([rank()]), ranks[-1], group=group)
        assert tensor.item() == ranks[-1]
        gathered_tensor = torch.empty(members)
        dist.all_gather_into_tensor(gathered_tensor, torch.tensor([float(rank())]), group=group)
        assert gathered_tensor.tolist() == ranks
        actual: list[Any] = [None] * members
        dist.all_gather_object(actual, rank(), group=group)
        assert actual == ranks
        gathered = [torch.empty(1) for _ in ranks] if rank() == ranks[0] else None
        dist.gather(torch.tensor([float(rank())]), gathered, dst=ranks[0], group=group)
        assert gathered is None or [tensor.item() for tensor in gathered] == ranks
        if members > 1:
            send_work = dist.isend(torch.tensor([rank()]), (rank() + 1) % size(), group=group)
            dist.recv(tensor, (rank() - 1) % size(), group=group)
            send_work.wait()
            assert tensor.item() == (rank() - 1) % size()
        dist.barrier(group)

    def check_groups_of_another_backend(self) -> None:
        init_process_group("farandole")
        gloo = dist.new_group(backend="gloo")
        assert (backend_of(gloo), dist.get_backend(gloo)) == ("ProcessGroupGloo", "gloo")
        assert sum_of_ones(gloo) == size()
        gloo_group = dist.new_group([0], backend="gloo")
        assert rank() > 0 or (backend_of(gloo_group), sum_of_ones(gloo_group)) == (
            "ProcessGroupGloo",
            1,
        )
        mixed_group = dist.new_group(backend="cuda:gloo,cpu:farandole")
        assert (backend_of(mixed_group), sum_of_ones(mixed_group)) == ("ProcessGroup", size())
        dist.monitored_barrier(gloo)
        dist.destroy_process_group(gloo)
        assert sum_of_ones(None) == size()
        dist.destroy_process_group()

    def check_training_on_a_mixture(self) -> None:
        init_process_group("cpu:gloo,cuda:farandole")
        torch.manual_seed(rank())
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        dist.all_reduce(largest := parameters.clone(), dist.ReduceOp.MAX)
        assert torch.equal(parameters, largest)
        del model
        dist.destroy_process_group()


class SecondGroupChecks:
    def check_a_second_group_begins_anew(self) -> None:
        """Make and destroy groups several times. Each time, one rank makes an invalid call, and all
        ranks drop a Work that is not done."""
        hvd.init()
        for round_number in range(3):
            init_process_group("farandole")
            tensor = torch.ones(1)
            dist.all_reduce(tensor, async_op=True)
            if dist.get_rank() == round_number:
                with pytest.raises(hvd.CallError):
                    dist.all_reduce(torch.ones(1), dist.ReduceOp.BXOR)
            dist.destroy_process_group()
        hvd.barrier()  # no rank has waited for the last all_reduce, so it may not be done
        hvd.shutdown()

    def check_a_scattered_input_is_only_read(self) -> None:
        init_process_group("farandole")
        output = torch.zeros(2)
        dist.reduce_scatter_tensor(output, torch.ones(1).expand(2 * dist.get_world_size()))
        assert torch.equal(output, torch.full((2,), float(dist.get_world_size())))
        dist.destroy_process_group()
