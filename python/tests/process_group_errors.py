"""The errors of the backend of torch.distributed. Each case is a call that must fail, with the
whole text of its error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist

import farandole.torch as hvd
from farandole import core, lifecycle
from farandole.torch.distributed import rendezvous

Case = tuple[Callable[[], object], str]


def cases() -> Iterator[Case]:
    rank, tensor = hvd.rank(), torch.ones(3)
    other_host_error = (
        "ranks 1 are on another host, or in another network namespace, than rank 0, so the "
        "ranks need a secret: make a file with `farandole secret FILE`, which all hosts can "
        "read, and set FARANDOLE_SECRET=FILE for all ranks; or start the job with `farandole "
        "run`, or all ranks on one host"
    )
    store = dist.HashStore()
    calls = (rendezvous._init_without_our_launcher, rendezvous.start_engine_of_some_ranks)
    with mock.patch.object(rendezvous, "_has_our_launcher", lambda: False):
        for number, call in enumerate(calls, 1):
            store.set(f"farandole/{number}/host/1", "another one")
            yield functools.partial(call, store, 0, 2), other_host_error
    yield (
        lambda: rendezvous.join(store, 3, 4),
        f"this process is rank 3 of 4 for torch.distributed, but rank {rank} of 2 for "
        "farandole: start all ranks with one launcher",
    )
    with mock.patch.object(lifecycle, "local_size", lambda: 1):
        yield (
            lambda: next(rendezvous.rendezvous_handler("farandole://")),
            "farandole:// keeps torch's store in the memory of rank 0, which ranks on other "
            "hosts cannot open: call init_process_group() without init_method, with RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment; `farandole run` and "
            "torchrun set them",
        )
        with mock.patch.object(lifecycle, "is_elastic", lambda: True):
            yield (
                lambda: next(rendezvous.rendezvous_handler("farandole://")),
                "torch.distributed cannot be used in an elastic job over several hosts, "
                "because its store is in the memory of rank 0, which ranks on other hosts "
                "cannot open: use the calls of farandole.torch, such as DistributedOptimizer, "
                "instead",
            )
    with mock.patch.object(lifecycle, "is_elastic", lambda: True):
        yield (
            lambda: rendezvous.join(store, rank, 2),
            'in an elastic job, call init_process_group("farandole", init_method='
            '"farandole://"): RANK, WORLD_SIZE and MASTER_ADDR in the environment are those of '
            "the start",
        )
    handler = rendezvous.rendezvous_handler("farandole://")
    next(handler)
    text = "a rendezvous can be used only once: call init_process_group() again"
    yield lambda: next(handler), text
    dist.init_process_group("farandole")
    with mock.patch.object(core, "job_number", lambda: 0):
        yield (
            lambda: dist.all_reduce(tensor),
            "this process group was made before the job was formed again, so its ranks may be "
            "wrong: call torch.distributed.destroy_process_group(), then init_process_group("
            '"farandole", init_method="farandole://"), and make again what uses the process '
            "group, such as a DistributedDataParallel",
        )
    yield from _call_cases(tensor)
    dist.destroy_process_group()


def _call_cases(tensor: torch.Tensor) -> Iterator[Case]:
    yield (
        lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BXOR),
        "a bitwise_xor needs whole numbers or bool; got torch.float32: view() shows the same "
        "bits as whole numbers",
    )
    yield (
        lambda: dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(torch.ones(1))),
        "PREMUL_SUM by a tensor is not supported; use PREMUL_SUM by a number, or multiply before",
    )
    for peer in (-1, 2):
        yield (
            functools.partial(dist.send, tensor, peer),
            f"there is no rank {peer} in this process group; its ranks are 0 to 1",
        )
    yield (
        lambda: dist.reduce_scatter_single(torch.ones(2), tensor),
        "reduce_scatter got an input of 3 elements (torch.float32) and an output of 2 "
        "(torch.float32) for 2 ranks; the input must have as many elements as the outputs of "
        "all ranks together",
    )
    yield (
        lambda: dist.all_gather_single(torch.ones(4, 2).t(), torch.ones(4)),
        "the output of all_gather_single must be contiguous",
    )
    yield (
        lambda: dist.all_gather_single(torch.empty(3), torch.ones(2)),
        "3 elements cannot be divided evenly among 2 ranks",
    )
    yield (
        lambda: dist.all_gather([torch.ones(3), torch.ones(2)], torch.ones(3)),
        "member 1 of the group has sent 3 elements (torch.float32), but the output for it has "
        "2: all ranks must agree on the sizes",
    )
    yield from _list_cases(tensor)
    yield from _sparse_cases()


def _list_cases(tensor: torch.Tensor) -> Iterator[Case]:
    dist.new_group([0])
    yield (
        lambda: hvd.add_process_set([hvd.rank()]),
        "the ranks ask for different changes of process sets:\n"
        "  rank 0   adds [0]\n"
        "  rank 1   adds [1]\n"
        "All ranks must add and remove the same process sets in the same order",
    )
    yield (
        lambda: dist.all_to_all_single(torch.empty(3, 2), torch.ones(3, 2)),
        "the output of all_to_all_single has 3 rows (shape [3, 2]), which cannot be divided evenly "
        "among the 2 ranks of the group: make the first dimension a multiple of 2, or give "
        "output_split_sizes",
    )
    yield (
        lambda: dist.all_gather([torch.empty(3)] * 3, tensor),
        "all_gather got 3 outputs for a group of 2 ranks: give one for each rank of the group",
    )
    yield (
        lambda: dist.all_gather_coalesced([[torch.empty(3)] * 2] * 2, [tensor]),
        "all_gather_coalesced got lists of different lengths, 2 for the outputs and 1 for the "
        "inputs: give one output for each input",
    )
    yield (
        lambda: dist.all_gather_into_tensor(torch.empty(6, dtype=torch.int32), tensor),
        "all_gather_into_tensor got tensors of different dtypes: torch.float32, torch.int32; all "
        "inputs and outputs must have the same dtype",
    )


def _sparse_cases() -> Iterator[Case]:
    tensor = torch.eye(2 + dist.get_rank(), 3).to_sparse()
    yield (
        lambda: dist.all_reduce(tensor),
        "the sparse tensors of an all_reduce differ: float32 [2, 3] with 2 sparse dimensions, "
        "float32 [3, 3] with 2 sparse dimensions, in the order of the ranks; all ranks must give "
        "the same dtype, shape and number of sparse dimensions",
    )
    yield (
        lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        "an all_reduce of a sparse tensor needs the op SUM or AVG: use tensor.to_dense() on all "
        "ranks, and make embeddings with sparse=False",
    )
    yield (
        lambda: dist.broadcast(tensor, 0),
        "the tensor's layout is torch.sparse_coo, but only all_reduce and reduce take sparse "
        "tensors, and only of the layout torch.sparse_coo: call tensor.to_dense() on all ranks, "
        "and make embeddings with sparse=False",
    )
