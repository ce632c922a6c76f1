"""Checks of groups with other backends, and of groups that only their members make."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_distributed import init_process_group, rank, size

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
        """torch's name for a group contains the number of groups that this rank has made, which may
        differ between ranks."""
        init_process_group("farandole")
        if rank() == 0:
            assert sum_of_ones(dist.new_group([0], **MEMBERS_ALONE)) == 1
        for _ in range(2):
            members = list(range(size() - 1, 0, -1)) or [0]
            if rank() in members:
                group = dist.new_group(members, **MEMBERS_ALONE)
                assert sum_of_ones(group) == len(members)
                self.expect_calls(group, sorted(members))
        whole = dist.new_group(**MEMBERS_ALONE)
        assert sum_of_ones(whole) == sum_of_ones(None) == size()
        if hvd.size() > 1:  # torch's group uses a group that all ranks have made
            process_set = hvd.add_process_set([0])
            if rank() == 0:
                group = dist.new_group([0], **MEMBERS_ALONE)
                assert group._number == process_set.process_set_id  # type: ignore[union-attr]
                assert sum_of_ones(group) == 1
        dist.destroy_process_group()

    def expect_calls(self, group: Any, members: list[int]) -> None:
        dist.broadcast(tensor := torch.tensor([rank()]), members[-1], group=group)
        assert tensor.item() == members[-1]
        found: list[Any] = [None] * len(members)
        dist.all_gather_object(found, rank(), group=group)
        assert found == members
        if len(members) > 1:
            next_rank = members[(members.index(rank()) + 1) % len(members)]
            previous_rank = members[members.index(rank()) - 1]
            sending = dist.isend(torch.tensor([rank()]), next_rank, group=group)
            dist.recv(tensor, previous_rank, group=group)
            sending.wait()
            assert tensor.item() == previous_rank
            with pytest.raises(hvd.CallError, match="the shape differs"):
                dist.all_reduce(torch.ones(1 + (rank() == members[0])), group=group)
        dist.barrier(group)

    def check_ranks_in_another_order(self) -> None:
        init_process_group("farandole")
        order = list(range(size()))[::-1]
        group = dist.new_group(order, sort_ranks=False)
        assert dist.get_rank(group) == order.index(rank())
        found = [torch.empty(1) for _ in order]
        dist.all_gather(found, torch.tensor([float(rank())]), group=group)
        assert [int(tensor) for tensor in found] == order
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


class MixtureChecks:
    def check_strings_of_backends(self) -> None:
        for text, wanted in (
            ("cpu:gloo,cuda:farandole", "ProcessGroupGloo"),
            ("cuda:farandole,cpu:gloo", "ProcessGroupGloo"),
            ("cuda:gloo,cpu:farandole", "ProcessGroup"),
        ):
            init_process_group(text)
            self.expect_group(dist.group.WORLD, wanted, size())
            self.expect_group(dist.new_group(), wanted, size())
            alone = dist.new_group([rank()], **MEMBERS_ALONE)
            self.expect_group(alone, wanted, 1)
            dist.destroy_process_group()

    def expect_group(self, group: Any, wanted: str, members: int) -> None:
        assert backend_of(group) == wanted
        assert {device.type for device in group._device_types} == {"cpu", "cuda"}
        assert sum_of_ones(group) == members
        ranks = dist.get_process_group_ranks(group)
        dist.broadcast(tensor := torch.tensor([rank()]), ranks[-1], group=group)
        assert tensor.item() == ranks[-1]
        whole = torch.empty(members)
        dist.all_gather_into_tensor(whole, torch.tensor([float(rank())]), group=group)
        assert whole.tolist() == ranks
        found: list[Any] = [None] * members
        dist.all_gather_object(found, rank(), group=group)
        assert found == ranks
        gathered = [torch.empty(1) for _ in ranks] if rank() == ranks[0] else None
        dist.gather(torch.tensor([float(rank())]), gathered, dst=ranks[0], group=group)
        assert gathered is None or [tensor.item() for tensor in gathered] == ranks
        if members > 1:
            sending = dist.isend(torch.tensor([rank()]), (rank() + 1) % size(), group=group)
            dist.recv(tensor, (rank() - 1) % size(), group=group)
            sending.wait()
            assert tensor.item() == (rank() - 1) % size()
        dist.barrier(group)

    def check_groups_of_another_backend(self) -> None:
        init_process_group("farandole")
        gloo = dist.new_group(backend="gloo")
        assert (backend_of(gloo), dist.get_backend(gloo)) == ("ProcessGroupGloo", "gloo")
        assert sum_of_ones(gloo) == size()
        one = dist.new_group([0], backend="gloo")
        assert rank() > 0 or (backend_of(one), sum_of_ones(one)) == ("ProcessGroupGloo", 1)
        mixed = dist.new_group(backend="cuda:gloo,cpu:farandole")
        assert (backend_of(mixed), sum_of_ones(mixed)) == ("ProcessGroup", size())
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
