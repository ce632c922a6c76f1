"""The process group: torch's collective operations on the engine.

A process group of torch uses the engine's group of the same ranks. torch pairs calls by their order
alone. So a process group numbers its calls; the name of a call consists of the name of the process
group and this number. Therefore two process groups of the same ranks can have calls in flight at
the same time.

Every operation is one call of the engine. Tensors are sent with one dimension, because torch
requires only that their numbers of elements are equal. If the engine does not know a dtype, the
tensor is sent as bytes.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from farandole import core, lifecycle
from farandole.calls import start, start_batch
from farandole.errors import (
    CallError,
    FarandoleError,
    GroupLostError,
    MisuseError,
    text_for_other_ranks,
)
from farandole.group import Group, global_process_set
from farandole.handle import PreparedCall
from farandole.torch.distributed import rendezvous
from farandole.torch.distributed.other_backends import (
    GroupSpec,
    OtherBackends,
    backends_of_new_group,
    backends_of_unfinished_group,
    make_torch_group,
)
from farandole.torch.distributed.reductions import (
    BitwiseFunction,
    Reduction,
    check_bitwise_dtype,
    reduction_of,
)
from farandole.torch.distributed.sparse import (
    check_sparse_reduction,
    sparse_message,
    store_sparse_total,
)
from farandole.torch.distributed.tensor_lists import (
    check_count,
    check_dense,
    check_dtypes,
    check_pairs,
    split_by_rows,
)
from farandole.torch.distributed.work import REINITIALIZE_ADVICE, Work, with_advice
from farandole.torch.dynamo import outside_dynamo
from farandole.torch.tensors import (
    DTYPE_CODES,
    check,
    check_writable,
    contiguous_on_host,
    empty,
    is_contiguous_on_host,
    view_of,
)
from farandole_torch_backend import BACKEND_NAME

Tensors = Sequence[torch.Tensor]
Result = TypeVar("Result")


class _GroupCounts:
    """Counts the groups that this process has made in the job with this number. The counts begin at
    0 in each job, so that old and new members have the same counts."""

    def __init__(self, job: int) -> None:
        self.job = job
        # Numbers the default groups. After destroy_process_group(), torch gives the same names to
        # new groups, but messages of an older group must not match those of a newer one.
        self.world_numbers = itertools.count()
        # For each tuple of ranks, how many groups these ranks have made without the other ranks.
        self.member_group_counts: Counter[tuple[int, ...]] = Counter()


_group_counts = _GroupCounts(0)


def _current_group_counts() -> _GroupCounts:
    global _group_counts  # noqa: PLW0603
    if _group_counts.job != core.job_number():
        if _group_counts.job > 0:
            # A DistributedDataParallel that has lost its job in backward() still has its hooks at
            # the parameters. It is part of a reference cycle, so free it here.
            gc.collect()
        _group_counts = _GroupCounts(core.job_number())
    return _group_counts


def make_process_group(options: Any, _backend_options: object) -> ProcessGroup:
    """Make a process group; torch.distributed calls this function. The new group is the default
    group or, beside a default group of another backend, a group of all or of some ranks."""
    ranks, rank, size = options.global_ranks_in_group, options.group_rank, options.group_size
    spec = GroupSpec(ranks, rank, size, options.store, options.group_id, options.timeout)
    if ranks and list(ranks) != list(range(dist.get_world_size())):
        spec = _with_common_name(spec)
        process_group = _group_of_members(spec, options.group_id)
    else:
        rendezvous.join(options.store, rank, size)
        process_group = ProcessGroup(
            global_process_set, options.group_id, next(_current_group_counts().world_numbers)
        )
        process_group._has_joined, process_group._store = True, options.store
    process_group._add_other_backends(backends_of_unfinished_group(), spec)
    return process_group


def _with_common_name(spec: GroupSpec) -> GroupSpec:
    """Return the spec with a name that is the same on all members. If only the members make the
    group, torch's name contains the number of groups that this rank has made, which may differ
    between the members."""
    counts = _current_group_counts().member_group_counts
    number = counts[tuple(spec.ranks)]
    counts[tuple(spec.ranks)] += 1
    common_name = f"{'-'.join(map(str, spec.ranks))}.{number}"
    store = dist.PrefixStore(f"farandole/members/{common_name}/", c10d._get_default_store())
    return spec._replace(name=common_name, store=store)


def _group_of_members(spec: GroupSpec, name: str, world_number: int = 0) -> ProcessGroup:
    """Make a group; only its members call this function. If all ranks of the job have made a group
    of these ranks, use that group. Otherwise, these ranks get an engine of their own."""
    group = lifecycle.group_of(spec.ranks) if lifecycle.is_initialized() else None
    if group is not None and group.included() and group.rank() == spec.rank:
        return ProcessGroup(group, name, world_number, spec.name)
    engine = rendezvous.start_engine_of_some_ranks(spec.store, spec.rank, spec.size)
    group = Group(range(spec.size))
    group.register(0, list(range(spec.size)), spec.rank)
    return ProcessGroup(group, name, world_number, spec.name, engine)


def _group_of(ranks: Sequence[int]) -> Group:
    lifecycle.check_has_state("new_group()")
    try:
        return lifecycle.lasting_group_of(ranks)
    except GroupLostError as error:
        raise with_advice(error) from None


def _announce_errors(operation: Callable[..., Work]) -> Callable[..., Work]:
    """Decorate an operation: if this rank cannot make the call, the decorator announces the error,
    and the other ranks get this error from their call. This rank counts the failed call, too, so
    that all ranks give the same numbers to later calls."""

    @functools.wraps(operation)
    def start_or_announce(self: ProcessGroup, *tensors: Any, **options: Any) -> Work:
        if self._other_backends is not None:
            other_operation = self._other_backends.operation(operation.__name__, tensors)
            if other_operation is not None:
                return other_operation(*tensors, **options)
        self._check_job()
        first_call_number = self._call_count
        try:
            return operation(self, *tensors, **options)
        except Exception as error:
            if isinstance(error, FarandoleError) and not isinstance(error, CallError):
                raise with_advice(error) from None  # the group has ended, so no rank waits
            self._call_count = first_call_number + _count_calls(operation.__name__, tensors)
            for number in range(first_call_number, self._call_count):
                name, text = f"{self._name_prefix}{number}", text_for_other_ranks(error)
                self._announce(core.invalid_call(name, self._group_number, text))
            raise

    return outside_dynamo(start_or_announce)


def _count_calls(operation: str, tensors: Sequence[Any]) -> int:
    """Return how many calls of the engine an operation with these arguments makes: a coalesced
    operation makes one call for each of its tensors."""
    if not operation.endswith("_coalesced"):
        return 1
    return len(tensors[0] if operation == "allreduce_coalesced" else tensors[1])  # the inputs


class ProcessGroup(dist.ProcessGroup):
    """A process group of torch.distributed."""

    # size waiver: what identifies a group
    def __init__(
        self,
        group: Group,
        name: str,
        world_number: int = 0,
        common_name: str = "",
        engine: core.Engine | None = None,
    ) -> None:
        """Make a process group. `name` is torch's name of the group. If it differs between the
        members, `common_name` is the group's name in calls. `engine` is set if the members have an
        engine of their own."""
        super().__init__(group.rank(), group.size())
        self._name, self._description = name, "undefined"
        self._ranks = tuple(group.ranks or ())
        self._group_number = group.number()
        self._size = len(self._ranks)
        self._world_number = world_number
        self._channel = f"{world_number}.{common_name or name}"
        # Names contain the number of the default process group (`world_number`), because calls of
        # an earlier default group may still be in flight.
        self._name_prefix = f"torch.group{self._channel}."
        self._call_count = 0  # the number of calls so far
        self._engine = engine
        self._job = core.job_number()
        self._has_joined = False
        self._store: dist.Store | None = None
        self._other_backends: OtherBackends | None = None
        # For each source, destination and tag: an iterator over the numbers of the next messages.
        self._message_numbers: dict[tuple[str, int], Iterator[int]] = {}

    # Properties of a group, under torch's names in C++ and in Python.

    def getBackendName(self) -> str:  # noqa: N802
        return "farandole"

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    # Usually, a process group of torch asks its backends whether they have these abilities. This
    # group is its own backend, and has none of them.
    supports_coalescing = supports_splitting = supports_time_estimate = supports_shrinking = False

    def _get_backend(self, device: object) -> Any:
        if self._other_backends is not None and self._other_backends.serves(device):
            return self._other_backends.backend(device)
        return self

    def supports_tensor_alloc(self, device: object) -> bool:
        return False

    @property
    def _device_types(self) -> list[torch.device]:
        return (
            [torch.device("cpu")] if self._other_backends is None else self._other_backends.devices
        )

    def _add_other_backends(self, backends: Mapping[str, str], spec: GroupSpec) -> None:
        """Make the other backends that a string such as cpu:gloo,cuda:farandole names."""
        if set(backends.values()) - {BACKEND_NAME}:
            self._other_backends = OtherBackends(backends, spec)

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def _check_job(self) -> None:
        """Raise MisuseError if the job was formed again after this group was made. Since then, the
        group's ranks, its size and the numbers of its calls may be wrong, and calls could give
        wrong results or wait forever."""
        if self._engine is None and self._job != core.job_number():
            raise MisuseError(
                "this process group was made before the job was formed again, so its ranks may be "
                f"wrong: {REINITIALIZE_ADVICE}"
            )

    # Making groups of some ranks, and ending a group.

    # size waiver: torch's arguments
    def new_group(
        self,
        ranks: Sequence[int],
        timeout: Any = None,
        backend: object = None,
        pg_options: object = None,
        group_name: str = "",
        group_desc: str | None = None,
    ) -> dist.ProcessGroup | None:
        """Make a group. All ranks must call it; a rank outside of the group gets None. With
        use_local_synchronization=True, only its members call it. torch 2.13 and later versions call
        this method even for a group of another backend."""
        self._check_job()
        is_member, backends = self.rank() in ranks, backends_of_new_group(backend)
        assert self._store is not None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        rank = list(ranks).index(self.rank()) if is_member else -1
        spec = GroupSpec(ranks, rank, len(ranks), store, group_name, timeout)
        # Only the members make the group in two cases. In the first case, only they have called
        # new_group(): then torch's name of the group is a digest and not a number. In the second
        # case, the ranks are not ascending, but the job's engine adds only groups with ascending
        # ranks.
        is_made_by_members = not group_name.isdigit() or list(ranks) != sorted(ranks)
        if is_made_by_members and is_member:
            spec = _with_common_name(spec)
        if backends and BACKEND_NAME not in backends.values():
            return make_torch_group(backends, spec) if is_member else None
        if is_made_by_members:
            process_group = (
                _group_of_members(spec, group_name, self._world_number) if is_member else None
            )
        else:
            group = _group_of(ranks)
            process_group = (
                ProcessGroup(group, group_name, self._world_number) if is_member else None
            )
        if process_group is None:
            return None
        process_group._add_other_backends(backends, spec)
        process_group.setGroupDesc(group_desc or "undefined")
        return process_group

    def shutdown(self) -> None:
        """End the group. destroy_process_group() calls it. If init_process_group() has joined the
        engine's job, this process leaves the job when its last group from make_process_group()
        ends."""
        if self._other_backends is not None:
            self._other_backends.shutdown()
            self._other_backends = None
        if self._engine is not None:
            lifecycle.end_engine_of_some_ranks(self._engine)
        if self._has_joined:
            self._has_joined = False
            rendezvous.leave()

    abort = shutdown

    # Reductions.

    @_announce_errors
    def allreduce(self, tensors: Tensors, opts: Any = dist.AllreduceOptions()) -> Work:  # noqa: B008
        (tensor,) = tensors
        return self._start(self._allreduce(tensor, reduction_of(opts.reduceOp)), opts, tensors)

    @_announce_errors
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Work:
        reduction = reduction_of(opts.reduceOp)
        return self._start_all(
            [self._allreduce(each, reduction) for each in tensors], opts, tensors
        )

    @_announce_errors
    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        reduction = reduction_of(opts.reduceOp)
        if opts.rootRank == self.rank():
            return self._start(self._allreduce(tensor, reduction), opts, tensors)
        return self._start(self._allreduce(tensor.clone(), reduction), opts, tensors)

    @_announce_errors
    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        """Reduce lists of tensors, and give each rank one of the sums. The tensors of a list may
        have different sizes."""
        (output,), (inputs,) = outputs, input_lists
        reduction = reduction_of(opts.reduceOp)
        check_count("reduce_scatter", "inputs", inputs, self._size)
        check_dtypes("reduce_scatter", [output, *inputs])
        all_inputs = _concatenated(inputs)
        if all(part.numel() == output.numel() for part in inputs):
            return self._start(self._reduce_scatter(output, all_inputs, reduction), opts, outputs)
        parts = all_inputs.split([part.numel() for part in inputs])
        call = self._allreduce(all_inputs, reduction)
        own_part = parts[self.rank()]
        return self._start(_followed_by(call, lambda: _copy(output, own_part)), opts, outputs)

    @_announce_errors
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        call = self._reduce_scatter(output, input, reduction_of(opts.reduceOp))
        return self._start(call, opts, [output])

    _reduce_scatter_base = reduce_scatter_single

    @_announce_errors
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        reduction = reduction_of(opts.reduceOp)
        check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs)
        pairs = zip(outputs, inputs, strict=True)
        return self._start_all(
            [self._reduce_scatter(*pair, reduction) for pair in pairs], opts, outputs
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Operations that move data without reducing it.

    @_announce_errors
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        name, root = self._next_name(), self._ranks[opts.rootRank]
        call = self._prepare_in_place(
            lambda view: core.broadcast(name, self._group_number, view, root),
            tensor,
            core.Engine.check_outcome,
        )
        return self._start(call, opts, tensors)

    @_announce_errors
    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Gather the tensors of all ranks. They may have different sizes."""
        (outputs,), (tensor,) = output_lists, inputs
        check_count("all_gather", "outputs", outputs, self._size)
        check_dtypes("all_gather", [tensor, *outputs])
        return self._start(self._allgather(outputs, tensor), opts, outputs)

    @_announce_errors
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """Gather several tensors of each rank. `output_lists` has one list for each rank, with an
        output for each tensor of that rank."""
        function = "all_gather_coalesced"
        check_count(function, "lists of outputs", output_lists, self._size)
        for outputs in output_lists:
            check_pairs(function, outputs, inputs)
        outputs_by_input = zip(*output_lists, strict=True)
        calls = [self._allgather(*pair) for pair in zip(outputs_by_input, inputs, strict=True)]
        return self._start_all(calls, opts, list(itertools.chain(*output_lists)))

    @_announce_errors
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self._start(self._allgather_into(output, input), opts, [output])

    _allgather_base = all_gather_single

    @_announce_errors
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        check_pairs("all_gather_into_tensor_coalesced", outputs, inputs)
        pairs = zip(outputs, inputs, strict=True)
        return self._start_all([self._allgather_into(*pair) for pair in pairs], opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_announce_errors
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        check_count("all_to_all", "outputs", outputs, self._size)
        check_count("all_to_all", "inputs", inputs, self._size)
        check_dtypes("all_to_all", [*inputs, *outputs])
        splits = [tensor.numel() for tensor in inputs]
        return self._start(self._alltoall(outputs, _concatenated(inputs), splits), opts, outputs)

    @_announce_errors
    # size waiver: torch's arguments
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Send some rows of `input` to each rank. Without sizes, all ranks get the same number of
        rows."""
        check_dtypes("all_to_all_single", [input, output])
        memory = output if output.is_contiguous() else torch.empty_like(output.contiguous())
        output_parts = split_by_rows("output", memory, output_split_sizes, self._size)
        input_parts = split_by_rows("input", input, input_split_sizes, self._size)
        splits = [part.numel() for part in input_parts]
        call = self._alltoall(output_parts, input.reshape(-1), splits)
        if memory is not output:
            call = _followed_by(call, lambda: _copy(output, memory))
        return self._start(call, opts, [output])

    alltoall_base = all_to_all_single

    @_announce_errors
    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (tensor,) = inputs
        splits = [0] * self._size
        splits[opts.rootRank] = tensor.numel()
        outputs = (
            output_lists[0]
            if opts.rootRank == self.rank()
            else _tensors_without_elements(tensor, self._size)
        )
        check_count("gather", "outputs", outputs, self._size)
        check_dtypes("gather", [tensor, *outputs])
        return self._start(self._alltoall(outputs, _concatenated(inputs), splits), opts, outputs)

    @_announce_errors
    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        (output,) = outputs
        inputs = (
            input_lists[0]
            if opts.rootRank == self.rank()
            else _tensors_without_elements(output, self._size)
        )
        check_count("scatter", "inputs", inputs, self._size)
        check_dtypes("scatter", [output, *inputs])
        outputs_by_sender = _tensors_without_elements(output, self._size)
        outputs_by_sender[opts.rootRank] = output
        splits = [tensor.numel() for tensor in inputs]
        return self._start(
            self._alltoall(outputs_by_sender, _concatenated(inputs), splits), opts, outputs
        )

    @_announce_errors
    def barrier(self, opts: Any = None) -> Work:
        call = core.barrier(self._next_name(), self._group_number)
        return self._start(PreparedCall(call, None, core.Engine.check_outcome), opts, [])

    def monitored_barrier(self, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks. If a rank is late, the launcher names it. If a rank has ended, the
        error names it."""
        self.barrier().wait()

    # Sending and receiving.

    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        """Send a tensor. The call is done when the other rank has received the tensor. If the
        tensor has at most 8 KiB, the call may be done earlier."""
        return self._start_message(core.send, tensors, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._start_message(core.recv, tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self._start_message(core.recv, tensors, None, tag)

    @outside_dynamo
    def _start_message(self, make_call: Any, tensors: Tensors, peer: int | None, tag: int) -> Work:
        """Start a send, or a receive from the peer or from any rank. The ranks match messages by
        this process group and by tag; the name only appears in errors and reports."""
        (tensor,) = tensors
        if peer is not None and not 0 <= peer < self._size:
            last_rank = self._size - 1
            raise CallError(
                f"there is no rank {peer} in this process group; its ranks are 0 to {last_rank}"
            )
        if self._other_backends is not None and self._other_backends.serves(tensor.device):
            operation_name = (
                "send" if make_call is core.send else "recv_anysource" if peer is None else "recv"
            )
            peer_arguments = () if peer is None else (peer,)
            work: Work = self._other_backends.operation(operation_name, tensors)(
                list(tensors), *peer_arguments, tag
            )
            return work
        self._check_job()
        peer_text = "any" if peer is None else str(peer)
        direction = (
            f"{self.rank()}to{peer_text}"
            if make_call is core.send
            else f"{peer_text}to{self.rank()}"
        )
        # Several threads may send at the same time, because setdefault() and next() are atomic.
        number = next(self._message_numbers.setdefault((direction, tag), itertools.count()))
        name = f"{self._name_prefix}{direction}.tag{tag}.{number}"
        message = (-1 if peer is None else self._ranks[peer], tag, self._channel)
        try:
            call = self._prepare_in_place(
                lambda view: make_call(name, self._group_number, view, message, ""),
                tensor,
                core.Engine.peek_source,
                writes_tensor=make_call is core.recv,
            )
        except Exception as error:
            view, text = core.BufferView(0, (0,), 0, 0), text_for_other_ranks(error)
            self._announce(make_call(name, self._group_number, view, message, text))
            raise
        try:
            return Work(start(call, engine=self._engine), tensors, self._rank_of_sender)
        except GroupLostError as error:
            raise with_advice(error) from None

    def _rank_of_sender(self, source: int) -> int:
        """Return the rank in this group that has sent the message, or -1 if the call was a send."""
        return -1 if source < 0 else self._ranks.index(source)

    # Making and starting calls of the engine.

    def _next_name(self) -> str:
        self._call_count += 1
        return f"{self._name_prefix}{self._call_count - 1}"

    def _start(self, call: PreparedCall[None], opts: Any, outputs: Tensors) -> Work:
        blocking = not getattr(opts, "asyncOp", True)
        return Work(start(call, blocking, self._engine), outputs)

    def _start_all(self, calls: Sequence[PreparedCall[None]], opts: Any, outputs: Tensors) -> Work:
        blocking = not getattr(opts, "asyncOp", True)
        return Work(start_batch(calls, blocking, self._engine), outputs)

    def _announce(self, invalid_call: core.Call) -> None:
        """Submit a call that fails on all ranks that take part, with the error that it contains."""
        start(PreparedCall(invalid_call, None, core.Engine.check_outcome), engine=self._engine)

    def _allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> PreparedCall[None]:
        if tensor.layout is torch.sparse_coo:
            return self._sparse_allreduce(tensor, reduction)
        check_dense(tensor)
        check_writable(tensor)
        if callable(reduction):
            check_bitwise_dtype(reduction, tensor)
            parts = _uninitialized_like(tensor, self._size)
            gather = self._allgather(parts, tensor)
            return _followed_by(gather, lambda: _copy(tensor, _folded(reduction, parts)))
        memory = contiguous_on_host(tensor)
        op, factor = reduction
        view = view_of(memory, memory, memory, (memory.numel(),))
        call = core.allreduce(self._next_name(), self._group_number, view, op, factor, 1.0)
        prepared = PreparedCall(call, memory, core.Engine.check_outcome)
        return (
            prepared if memory is tensor else _followed_by(prepared, lambda: _copy(tensor, memory))
        )

    def _sparse_allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> PreparedCall[None]:
        """Gather the elements of all ranks, and add them up on each rank."""
        check_sparse_reduction(reduction)
        memory = sparse_message(tensor)
        view = view_of(memory, memory, None, (memory.numel(),))
        call = core.allgather(self._next_name(), self._group_number, view)

        def finish(engine: core.Engine, handle: int) -> None:
            array, sizes = engine.peek_received(handle, view)
            store_sparse_total(tensor, torch.from_dlpack(array).split(sizes), reduction)

        return PreparedCall(call, memory, finish)

    def _reduce_scatter(
        self, output: torch.Tensor, source: torch.Tensor, reduction: Reduction
    ) -> PreparedCall[None]:
        check_dense(source)
        check_dense(output)
        check_dtypes("reduce_scatter", [source, output])
        if source.numel() != output.numel() * self._size:
            raise CallError(
                f"reduce_scatter got an input of {source.numel()} elements ({source.dtype}) and an "
                f"output of {output.numel()} ({output.dtype}) for {self._size} ranks; the input "
                "must have as many elements as the outputs of all ranks together"
            )
        check_writable(output)
        check(source)
        if callable(reduction):
            check_bitwise_dtype(reduction, source)
            parts = _uninitialized_like(output, self._size)
            splits = [output.numel()] * self._size
            exchange = self._alltoall(parts, source.reshape(-1), splits)
            return _followed_by(exchange, lambda: _copy(output, _folded(reduction, parts)))
        op, factor = reduction
        memory = contiguous_on_host(source)
        writes_directly = is_contiguous_on_host(output) and not _do_overlap(memory, output)
        target = output if writes_directly else empty(output.shape, output.dtype)
        view = view_of(memory, memory, target, (memory.numel(),))
        call = core.reducescatter(self._next_name(), self._group_number, view, op, factor, 1.0)
        prepared = PreparedCall(call, (memory, target), core.Engine.check_outcome)
        return (
            prepared if writes_directly else _followed_by(prepared, lambda: _copy(output, target))
        )

    def _prepare_in_place(
        self,
        make_call: Callable[[core.BufferView], core.Call],
        tensor: torch.Tensor,
        finish: Callable[[core.Engine, int], Result],
        writes_tensor: bool = True,
    ) -> PreparedCall[Result]:
        """Return the call that `make_call` makes with the tensor as both input and output.
        `writes_tensor` says whether the call writes to the tensor."""
        check_dense(tensor)
        source = contiguous_on_host(tensor)
        memory = _as_engine_dtype(source)
        view = view_of(memory, memory, memory, (memory.numel(),))
        prepared = PreparedCall(make_call(view), memory, finish)
        if not writes_tensor or source is tensor:
            return prepared
        return _followed_by(prepared, lambda: _copy(tensor, source))

    def _allgather(self, outputs: Tensors, tensor: torch.Tensor) -> PreparedCall[None]:
        check_dense(tensor)
        memory = _as_engine_dtype(contiguous_on_host(tensor))
        view = view_of(memory, memory, None, (memory.numel(),))
        call = core.allgather(self._next_name(), self._group_number, view)
        return PreparedCall(call, memory, _CopyToOutputs(view, outputs))

    def _allgather_into(self, output: torch.Tensor, tensor: torch.Tensor) -> PreparedCall[None]:
        if not output.is_contiguous():
            raise CallError("the output of all_gather_single must be contiguous")
        check_dtypes("all_gather_into_tensor", [tensor, output])
        return self._allgather(self._equal_parts(output), tensor)

    def _alltoall(
        self, outputs: Tensors, flat_input: torch.Tensor, splits: Sequence[int]
    ) -> PreparedCall[None]:
        check_dense(flat_input)
        memory = _as_engine_dtype(contiguous_on_host(flat_input))
        units_per_element = memory.numel() // flat_input.numel() if flat_input.numel() else 1
        view = view_of(memory, memory, None, (memory.numel(),))
        sizes = tuple(units_per_element * size for size in splits)
        call = core.alltoall(self._next_name(), self._group_number, view, sizes)
        return PreparedCall(call, memory, _CopyToOutputs(view, outputs))

    def _equal_parts(self, tensor: torch.Tensor) -> Tensors:
        """Split a tensor into one part for each rank, all with the same number of elements."""
        if tensor.numel() % self._size:
            raise CallError(
                f"{tensor.numel()} elements cannot be divided evenly among {self._size} ranks"
            )
        if tensor.numel() == 0:
            return _tensors_without_elements(tensor, self._size)
        return tensor.reshape(-1).split(tensor.numel() // self._size)


class _CopyToOutputs:
    """Finishes a call: copies the part of each rank into the output for that rank."""

    __slots__ = ("outputs", "view")

    def __init__(self, view: core.BufferView, outputs: Tensors) -> None:
        self.view, self.outputs = view, outputs

    def __call__(self, engine: core.Engine, handle: int) -> None:
        array, sizes = engine.peek_received(handle, self.view)
        parts = torch.from_dlpack(array).split(sizes)
        for sender, (output, part) in enumerate(zip(self.outputs, parts, strict=True)):
            received = part if part.dtype == output.dtype else part.view(output.dtype)
            if received.numel() != output.numel():
                raise CallError(
                    f"member {sender} of the group has sent {received.numel()} elements "
                    f"({received.dtype}), but the output for it has {output.numel()}: all ranks "
                    "must agree on the sizes"
                )
            _copy(output, received)


def _followed_by(call: PreparedCall[Result], action: Callable[[], object]) -> PreparedCall[Result]:
    """Return the call, with an action to run when the call has finished."""

    def finish(engine: core.Engine, handle: int) -> Result:
        result = call.finish(engine, handle)
        action()
        return result

    return PreparedCall(call.call, call.borrowed, finish)


def _copy(output: torch.Tensor, source: torch.Tensor) -> None:
    output.detach().copy_(source.reshape(output.shape))


def _concatenated(tensors: Tensors) -> torch.Tensor:
    """Copy all tensors, one after another, into one new tensor with one dimension."""
    for tensor in tensors:
        check_dense(tensor)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _tensors_without_elements(example: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [example.new_empty(0) for _ in range(count)]


def _uninitialized_like(example: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [torch.empty_like(example.detach().contiguous()) for _ in range(count)]


def _folded(function: BitwiseFunction, parts: Tensors) -> torch.Tensor:
    return functools.reduce(function, parts)


def _as_engine_dtype(memory: torch.Tensor) -> torch.Tensor:
    """Return the tensor if the engine knows its dtype. Otherwise return its memory as bytes."""
    return memory if memory.dtype in DTYPE_CODES else memory.reshape(-1).view(torch.uint8)


def _do_overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    begin, end = first.data_ptr(), first.data_ptr() + first.nbytes
    return second.data_ptr() < end and begin < second.data_ptr() + second.nbytes
