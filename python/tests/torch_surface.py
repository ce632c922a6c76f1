"""Checks of farandole.torch as scripts for Horovod use it: names, arguments and behaviour.

The conformance suite, which all frontends share, does not check these things.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from suite import Suite
from torch_frontend import TorchFrontend

import farandole
import farandole.torch as hvd
from farandole import core, lifecycle
from farandole.handle import _handles_by_number
from farandole.torch.tensors import view_of

ALLREDUCE = "average=None name=None {}op=None prescale_factor=1.0 postscale_factor=1.0 process_set="
REDUCESCATTER = "name=None {}op=Average process_set= prescale_factor=1.0 postscale_factor=1.0"
NAME_AND_GROUP = "name=None process_set="
# Functions of Horovod, with their arguments and defaults; the default `process_set=` is the world.
# Our functions may have more arguments at the end.
SIGNATURES = {
    "init": "comm=None process_sets=None",
    "shutdown is_initialized stop_timeline rank size local_rank local_size cross_rank": "",
    "cross_size is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled": "",
    "gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built": "",
    "start_timeline": "file_path mark_cycles=False",
    "add_process_set remove_process_set": "process_set",
    "ProcessSet": "ranks_or_comm",
    "allreduce": "tensor " + ALLREDUCE.format("compression=none "),
    "allreduce_async allreduce_ allreduce_async_": "tensor " + ALLREDUCE.format(""),
    "grouped_allreduce": "tensors " + ALLREDUCE.format("compression=none "),
    "grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_": (
        "tensors " + ALLREDUCE.format("")
    ),
    "sparse_allreduce_async": "tensor name op process_set=",
    "allgather allgather_async": f"tensor {NAME_AND_GROUP}",
    "grouped_allgather grouped_allgather_async": f"tensors {NAME_AND_GROUP}",
    "broadcast broadcast_async broadcast_ broadcast_async_": f"tensor root_rank {NAME_AND_GROUP}",
    "alltoall alltoall_async": f"tensor splits=None {NAME_AND_GROUP}",
    "reducescatter": "tensor " + REDUCESCATTER.format("compression=none "),
    "reducescatter_async": "tensor " + REDUCESCATTER.format(""),
    "grouped_reducescatter": "tensors " + REDUCESCATTER.format("compression=none "),
    "grouped_reducescatter_async": "tensors " + REDUCESCATTER.format(""),
    "join": "device=-1",
    "barrier": "process_set=",
    "poll synchronize": "handle",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank",
    "broadcast_object": f"obj root_rank=0 {NAME_AND_GROUP}",
    "allgather_object": "obj name=None",
    "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
}
CONSTANTS = "Adasum Average Sum Min Max Product global_process_set Compression Compressor".split()

PF_EXITING = 4


def describe_parameter(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name
    if default is hvd.global_process_set:
        return f"{parameter.name}="
    if isinstance(default, hvd.ReduceOp):
        return f"{parameter.name}={default.name}"
    default_text = "none" if default is hvd.Compression.none else default
    return f"{parameter.name}={default_text}"


def fewest_descriptors() -> int:
    """Count the open descriptors many times and return the smallest count, because a thread may
    briefly use one descriptor more."""
    counts = []
    for _ in range(50):
        counts.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.001)
    return min(counts)


def living_threads() -> int:
    """Count the threads of this process. A thread that was joined may still be ending."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread may have ended
            flags = int((task / "stat").read_text().rpartition(")")[2].split()[6])
            count += not flags & PF_EXITING
    return count


class FakeCommunicator:
    """An object like a communicator of mpi4py."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Get_size(self) -> int:  # noqa: N802
        return self.size


class TorchSurface(Suite):
    def __init__(self) -> None:
        super().__init__(TorchFrontend())

    def check_signatures(self) -> None:
        for names, expected in SIGNATURES.items():
            for name in names.split():
                parameters = inspect.signature(getattr(hvd, name)).parameters.values()
                actual = [
                    describe_parameter(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
                ]
                assert actual[: len(expected.split())] == expected.split(), (name, actual)
                assert name in hvd.__all__, name
        assert set(CONSTANTS) <= set(hvd.__all__)
        for name in hvd.__all__:
            getattr(hvd, name)

    def check_queries(self) -> None:
        """Scripts use the answers of these functions to choose their calls."""
        assert hvd.gloo_built() and hvd.mpi_built() and hvd.gloo_enabled()
        assert hvd.mpi_enabled()  # scripts use Adasum only if mpi_enabled() is true
        assert hvd.mpi_threads_supported() is True
        assert hvd.nccl_built() == 0 and isinstance(hvd.nccl_built(), int)
        for query in (hvd.ccl_built, hvd.ddl_built, hvd.cuda_built, hvd.rocm_built):
            assert query() is False

    def check_one_name_for_two_operations(self) -> None:
        ones = torch.ones(2)
        for _ in range(3):
            total = hvd.allreduce_async(ones, op=hvd.Sum, name="shared")
            root = hvd.broadcast_async(ones * self.rank, 0, name="shared")
            gathered = hvd.allgather(ones[:1], name="shared")
            self.expect_error("`shared` is in use", hvd.broadcast_async, ones, 0, name="shared")
            assert hvd.synchronize(root).tolist() == [0.0, 0.0]
            assert hvd.synchronize(total).tolist() == [self.size] * 2
            assert len(gathered) == self.size
        if self.size > 1:  # the ranks' calls are paired only by this name

            def call_differently() -> None:
                if self.rank == 0:
                    hvd.allreduce(ones, name="shared")
                else:
                    hvd.broadcast(ones, 0, name="shared")

            self.expect_error("the operation differs", call_differently)
            hvd.allreduce(ones, name="shared")

    def check_handles(self) -> None:
        """Scripts can use a handle as a number, because Horovod's handles are numbers."""
        handles = [hvd.allreduce_async(torch.ones(2), name=f"h.{i}") for i in range(4)]
        names = {handle: index for index, handle in enumerate(handles)}
        assert [names[handle] for handle in handles] == [0, 1, 2, 3]
        assert len(set(handles)) == 4
        for handle in handles:
            assert isinstance(handle, int) and handle > 0
            assert torch.equal(hvd.synchronize(handle), torch.ones(2))
            assert hvd.poll(handle)
            assert hvd.synchronize(handle) is None
        batch = hvd.grouped_allreduce_async([torch.ones(2)] * 2)
        assert isinstance(batch, int) and batch > max(handles)
        assert len(hvd.synchronize(batch)) == 2
        assert hvd.synchronize(batch) == [None, None]
        assert hvd.synchronize(-1) is None and hvd.synchronize(int(batch)) is None

    def check_numbers_of_handles(self) -> None:
        """A script may keep only the number int(handle). The handle itself then lives until its
        result is taken."""
        numbers = [
            int(hvd.allreduce_async(torch.full((3,), float(i)), name=f"n.{i}", op=hvd.Sum))
            for i in range(4)
        ]
        assert all(type(number) is int for number in numbers)
        for i, number in reversed([*enumerate(numbers)]):
            assert torch.equal(hvd.synchronize(number), torch.full((3,), float(i * self.size)))
            assert hvd.synchronize(number) is None
        batch = int(hvd.grouped_allreduce_async([torch.ones(2)] * 2, name="batch", op=hvd.Sum))
        while not hvd.poll(batch):
            pass
        assert [result.tolist() for result in hvd.synchronize(batch)] == [[self.size] * 2] * 2
        failing_handle = hvd.broadcast_async(torch.ones(2), root_rank=self.size, name="failing")
        number = int(failing_handle)
        for is_error in (True, False):
            try:
                assert hvd.synchronize(number) is None and not is_error
            except hvd.CallError:
                assert is_error
        taken_handle = hvd.allreduce_async(torch.ones(2), name="taken")
        number = int(taken_handle)
        assert hvd.synchronize(taken_handle) is not None
        assert hvd.synchronize(number) is None and hvd.synchronize(int(taken_handle)) is None
        assert not _handles_by_number

    def check_one_handle_in_several_threads(self) -> None:
        """Several threads wait for one handle. One thread gets the result, and each other thread
        gets the result or None. Afterwards, the name is free."""
        with ThreadPoolExecutor(4) as pool:
            for step in range(100):
                tensor = torch.full((2,), float(self.rank))
                if self.rank == step % self.size:
                    time.sleep(0.005)  # so that the threads of the other ranks wait
                handle = hvd.allreduce_async_(tensor, name="in threads", op=hvd.Sum)
                poll_future = pool.submit(hvd.poll, handle)
                synchronize_futures = [pool.submit(hvd.synchronize, handle) for _ in range(3)]
                results = [take.result() for take in synchronize_futures]
                assert poll_future.result() in (True, False)
                assert all(result is None or result is tensor for result in results), results
                assert any(result is tensor for result in results), step
                assert tensor.tolist() == [sum(range(self.size))] * 2, (step, tensor)

    def check_an_interrupted_wait_in_place(self) -> None:
        """A signal handler interrupts the wait. The call goes on, and the next wait returns its
        result."""

        def interrupt(*_: object) -> None:
            raise InterruptedError

        tensor = torch.ones(3)
        if self.rank > 0:
            hvd.barrier()  # wait until rank 0 was interrupted
        handle = hvd.allreduce_async_(tensor, name="interrupted", op=hvd.Sum)
        if self.rank == 0 and self.size > 1:
            former_handler = signal.signal(signal.SIGALRM, interrupt)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                hvd.synchronize(handle)
            except InterruptedError:
                assert not hvd.poll(handle)
            else:
                raise AssertionError("the wait was not interrupted")
            signal.signal(signal.SIGALRM, former_handler)
            hvd.barrier()
        assert hvd.synchronize(handle) is tensor and hvd.synchronize(handle) is None
        assert tensor.tolist() == [self.size] * 3, tensor

    def check_a_call_is_collected_twice(self) -> None:
        """If a signal handler raises an exception between the two steps of synchronize(), the
        program calls synchronize() again, so collect() is called twice for the same call."""
        engine, tensor = lifecycle.engine(), torch.ones(2)
        for root_rank in (0, self.size):  # with this root rank, the call fails
            call = core.broadcast("collected twice", 0, view_of(tensor, tensor, tensor), root_rank)
            engine.submit(call, False)
            for take in (engine.collect, engine.collect, engine.check_call_outcome):
                try:
                    take(call)
                except hvd.CallError as error:
                    assert root_rank > 0 and "root" in str(error), error
                else:
                    assert root_rank == 0

    def check_the_error_of_a_call_in_place(self) -> None:
        """The error does not keep the tensor alive, and the name of the call is free."""
        for _ in range(2):
            tensor = torch.ones(2)
            alive = weakref.ref(tensor)
            handle = hvd.broadcast_async_(tensor, root_rank=self.size, name="fails in place")
            del tensor
            try:
                hvd.synchronize(handle)
            except hvd.CallError as error:
                kept_error = error
            assert "root" in str(kept_error) and kept_error.__context__ is None, kept_error
            assert alive() is None and hvd.synchronize(handle) is None

    def check_ops_by_their_numbers(self) -> None:
        """Scripts write `hvd.allreduce(tensor, op=1)`; the numbers are Horovod's."""
        ops = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
        assert ops == list(range(6))
        tensor = torch.tensor([self.rank + 1.0])
        for op in ops:
            assert torch.equal(hvd.allreduce(tensor, op=int(op)), hvd.allreduce(tensor, op=op))
        for op in (0, 1):
            expected = hvd.reducescatter(torch.ones(self.size), op=hvd.ReduceOp(op))
            assert torch.equal(hvd.reducescatter(torch.ones(self.size), op=op), expected)
            sparse = torch.ones(3).to_sparse()
            actual = hvd.sparse_allreduce_async(sparse, f"sparse.{op}", op)()
            assert torch.equal(actual.to_dense(), torch.ones(3) * (self.size if op else 1))
        for op in (hvd.Average, hvd.Sum, hvd.Adasum):
            assert torch.equal(self.trained_weight(int(op)), self.trained_weight(op)), op

    def trained_weight(self, op: int) -> torch.Tensor:
        torch.manual_seed(3)
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, layer.named_parameters(), op=op)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.full((1, 3), self.rank + 1.0)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach().clone()

    # Compression

    def check_compression_of_calls(self) -> None:
        total = self.size * (self.size + 1) / 2
        compressions = (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16)
        dtypes = (torch.float32, torch.float64, torch.float16, torch.int64)
        for compression, dtype in itertools.product(compressions, dtypes):
            tensor = torch.full((2 * self.size, 3), self.rank + 1).to(dtype)
            expected = torch.full((2 * self.size, 3), total).to(dtype)
            options = {"compression": compression, "op": hvd.Sum}
            for result in (
                hvd.allreduce(tensor, **options),
                hvd.reducescatter(tensor, **options),
                *hvd.grouped_allreduce([tensor] * 2, **options),
                *hvd.grouped_reducescatter([tensor] * 2, **options),
            ):
                assert result.dtype == dtype
                assert torch.equal(result, expected[: len(result)])

    def check_compressed_tensors_are_sent(self) -> None:
        one_third = torch.tensor([1 / 3])
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            result = hvd.allreduce(
                one_third, compression=getattr(hvd.Compression, name), op=hvd.Max
            )
            assert torch.equal(result, one_third.to(dtype).float()), name

    def check_a_compressor_of_the_program(self) -> None:
        class DoublingCompressor(hvd.Compressor):
            @staticmethod
            def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
                return tensor * 2, 2.0

            @staticmethod
            def decompress(tensor: torch.Tensor, ctx: float) -> torch.Tensor:
                return tensor / ctx + 1

        for compression in (DoublingCompressor, DoublingCompressor()):
            result = hvd.allreduce(torch.ones(3), None, "twice", compression, hvd.Sum)
            assert torch.equal(result, torch.full((3,), self.size + 1.0))

    def check_gradients_through_compression(self) -> None:
        tensor = torch.ones(3, requires_grad=True)
        result = hvd.allreduce(tensor, compression=hvd.Compression.bf16, op=hvd.Sum)
        (result * (self.rank + 1)).sum().backward()
        assert torch.equal(tensor.grad, torch.full((3,), self.size * (self.size + 1) / 2))

    # Sparse tensors

    def rows(self, rank: int, dtype: torch.dtype) -> torch.Tensor:
        """Return 8 sparse rows: rank r has the value 2r + 1 in the rows 0 ... r, twice in row r."""
        indices = torch.tensor([[*range(rank), rank, rank]])
        values = torch.full((rank + 2, 3), 2 * rank + 1).to(dtype)
        return torch.sparse_coo_tensor(indices, values, (8, 3), check_invariants=True)

    def check_sparse(self) -> None:
        dtypes = (torch.float32, torch.float64, torch.float16, torch.int64)
        for dtype, group in itertools.product(dtypes, self.my_groups()):
            total = sum(self.rows(rank, dtype).to_dense().double() for rank in group.ranks)
            for op, expected in ((hvd.Sum, total), (hvd.Average, total / group.size())):
                own_rows = self.rows(self.rank, dtype)
                finish = hvd.sparse_allreduce_async(own_rows, "sparse", op, group)
                self.expect_sparse(finish(), expected.to(dtype))
                self.expect_sparse(finish(), expected.to(dtype))

    def expect_sparse(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.is_sparse and actual.is_coalesced() and actual.dtype == expected.dtype
        torch.testing.assert_close(actual.to_dense(), expected)

    def check_sparse_without_elements_and_with_scalars(self) -> None:
        empty = torch.sparse_coo_tensor(
            torch.empty(2, 0), torch.empty(0), (4, 5), check_invariants=True
        )
        assert hvd.sparse_allreduce_async(empty, "empty", hvd.Sum)().indices().shape == (2, 0)
        own_tensor = empty
        if self.rank == 0:
            own_tensor = torch.eye(5)[:4].to_sparse()
        result = hvd.sparse_allreduce_async(own_tensor, name=None, op=hvd.Sum)()
        assert torch.equal(result.to_dense(), torch.eye(5)[:4])

    def check_sparse_of_different_sizes(self) -> None:
        if self.size == 1:
            return
        for different_rank in (0, self.size - 1):
            own_tensor = torch.ones(2, 3 + (self.rank == different_rank)).to_sparse()
            finish = hvd.sparse_allreduce_async(own_tensor, "sizes", hvd.Sum)
            text = self.expect_error("`sizes`", finish)
            assert "[2, 4]" in text and "[2, 3]" in text, text
        self.expect_sum_works()

    # Joining and leaving

    def check_init_with_a_communicator(self) -> None:
        all_ranks = list(range(self.size))
        for value in ([0, self.size], [*all_ranks, 0], FakeCommunicator(self.size + 1), 3, "all"):
            self.expect_error("joins the whole job", hvd.init, value)
        ids = {group.process_set_id: group.ranks for group in self.groups}
        assert lifecycle.process_set_ids_and_ranks() == {0: all_ranks, **ids}
        for comm in (all_ranks, all_ranks[::-1], [], FakeCommunicator(self.size), None):
            hvd.init(comm)
            hvd.shutdown()
            hvd.init(comm)
            assert lifecycle.process_set_ids_and_ranks() == {0: all_ranks}
        hvd.barrier()
        hvd.shutdown()
        self.expect_error("joins the whole job", hvd.init, [self.size])
        assert not hvd.is_initialized()
        self.init()

    def check_a_result_that_was_seen_stays_after_shutdown(self) -> None:
        handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
        while not hvd.poll(handle):
            pass
        hvd.barrier()
        hvd.shutdown()
        assert torch.equal(hvd.synchronize(handle), torch.full((2,), float(self.size)))
        self.init()

    def check_memory_stays_shared_from_job_to_job(self) -> None:
        """Memory that the engine has allocated in one job is shared memory in later jobs, too."""
        memory = torch.from_dlpack(lifecycle.engine().allocate(400_000)).view(torch.float32)
        for cycle in range(5):
            is_shared = lifecycle.engine().is_shared(memory.data_ptr(), memory.nbytes)
            assert is_shared, cycle
            fresh = torch.from_dlpack(lifecycle.engine().allocate(400_000))
            distance = abs(fresh.data_ptr() - memory.data_ptr())
            assert distance >= memory.nbytes, "memory in use was allocated again"
            memory.copy_(self.tensor((100_000,), seed=cycle))
            hvd.allreduce_(memory, op=hvd.Sum)
            expected = sum(self.inputs_of_all((100_000,), seed=cycle))
            self.expect(memory, expected, "float32", is_exact=False)
            hvd.shutdown()
            self.init()
        private = torch.zeros(100_000)
        assert not lifecycle.engine().is_shared(private.data_ptr(), private.nbytes)

    def check_the_same_group_twice(self) -> None:
        hvd.barrier()
        hvd.shutdown()
        equal_sets = [hvd.ProcessSet([0]), hvd.ProcessSet([0])]
        self.expect_error("twice", hvd.init, process_sets=equal_sets)
        self.init()

    def check_many_cycles_leave_no_descriptors_or_threads(self) -> None:
        def cycle() -> None:
            hvd.barrier()
            hvd.shutdown()
            hvd.init()
            hvd.allreduce_async(torch.ones(3), name="dropped")

        cycle()
        usage_before = fewest_descriptors(), living_threads()
        for _ in range(40):
            cycle()
        assert (fewest_descriptors(), living_threads()) == usage_before
        hvd.barrier()
        hvd.shutdown()
        self.init()

    def check_a_name_in_use_is_rejected_in_every_asynchronous_call(self) -> None:
        """Some scripts use a name on purpose while a call with this name is in flight, to see the
        error. This call may even be in flight at shutdown()."""
        if self.size == 1:
            return

        def call_repeatedly(call: Callable[..., Any], *arguments: Any) -> None:
            for _ in range(10):
                call(torch.ones(self.size), *arguments, name="again")

        for call in (
            (hvd.allreduce_async,),
            (hvd.allgather_async,),
            (hvd.broadcast_async, 0),
            (hvd.alltoall_async,),
            (hvd.reducescatter_async,),
            (hvd.allreduce_async_,),
        ):
            for rank_0_calls in (True, False):
                if (self.rank == 0) == rank_0_calls:
                    self.expect_error(
                        "`again` is in use by an earlier call", call_repeatedly, *call
                    )
                hvd.barrier()
            hvd.shutdown()
            self.init()
        self.expect_sum_works()

    def check_the_package_has_the_same_names(self) -> None:
        """Names that need no framework are also in the package farandole."""
        starting_jobs = {"WorkerError", "await_workers", "launch_workers", "run", "stop_workers"}
        for name in set(farandole.__all__) - starting_jobs:
            assert getattr(hvd, name) is getattr(farandole, name), name
