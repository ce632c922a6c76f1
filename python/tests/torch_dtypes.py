"""Checks that the torch.distributed backend moves tensors of dtypes that the engine does not know,
and tensors whose memory holds other values."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch_distributed import Tensors, rank, size


class DtypeChecks:
    def check_tensors_that_are_not_contiguous(self) -> None:
        dist.init_process_group("farandole")
        for dtype in (torch.complex64, torch.float8_e4m3fn):
            expected = torch.arange(12.0).reshape(4, 3).to(dtype)
            columns = (
                expected.reshape(3, 4).clone().t() if rank() else expected.t().contiguous().t()
            )
            dist.broadcast(columns, 0)
            assert torch.equal(columns.contiguous().view(torch.uint8), expected.view(torch.uint8))
        dist.destroy_process_group()

    def check_tensors_with_a_conjugate_or_a_negative_bit(self) -> None:
        """If a tensor has one of these bits, the signs in its memory differ from those of its
        values. The check calls the methods of the group object directly, because the functions of
        torch.distributed reject the conjugate bit."""
        dist.init_process_group("farandole")
        for make_view in (torch.conj, lambda tensor: tensor.conj().imag, torch._neg_view):
            inputs = [
                make_view(torch.arange(2 * size()) + 1j * (other + 1)) for other in range(size())
            ]
            assert inputs[0].is_conj() or inputs[0].is_neg()
            self.expect_moves(
                inputs, lambda make_view=make_view: make_view(torch.zeros(2 * size()) + 0j)
            )
        tensor = torch.view_as_complex(torch.ones(1, 2)).conj().imag
        dist.all_reduce(tensor)
        assert tensor.item() == -size()
        dist.destroy_process_group()

    def expect_moves(self, inputs: Tensors, make_output: Callable[[], torch.Tensor]) -> None:
        """Send inputs[rank()] by each operation that moves data. make_output() makes the tensors
        that receive it."""
        group: Any = dist.group.WORLD
        own_input, last_rank = inputs[rank()], size() - 1
        options = dist.GatherOptions()
        options.rootRank = last_rank
        group.broadcast(
            [sent := own_input if rank() == 0 else make_output()], dist.BroadcastOptions()
        ).wait()
        assert torch.equal(sent, inputs[0].clone())
        group.allgather([gathered := [make_output() for _ in inputs]], [own_input]).wait()
        assert all(map(torch.equal, gathered, inputs))
        gathered = [make_output() for _ in inputs]
        group.gather([gathered] if rank() == last_rank else [], [own_input], options).wait()
        assert rank() != last_rank or all(map(torch.equal, gathered, inputs))
        output, sources = make_output(), [inputs] if rank() == last_rank else []
        group.scatter([output], sources, options).wait()
        assert torch.equal(output, own_input)
        group.all_to_all_single(output := make_output(), own_input, [], []).wait()
        expected = [tensor.reshape(size(), -1)[rank()] for tensor in inputs]
        assert torch.equal(output, torch.cat(expected))
        group.alltoall(parts := list(make_output().split(2)), list(own_input.split(2))).wait()
        assert all(map(torch.equal, parts, expected))
        gathered_tensor = torch.empty(2 * size() ** 2, dtype=own_input.dtype)
        group.all_gather_single(gathered_tensor, own_input).wait()
        assert torch.equal(gathered_tensor, torch.cat(inputs))
        if size() > 1 and rank() == 0:
            group.send([own_input], 1, 0).wait()
        elif rank() == 1:
            group.recv([output := make_output()], 0, 0).wait()
            assert torch.equal(output, inputs[0])
