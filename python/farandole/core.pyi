"""The compiled engine (python/bindings). Frontends use it; users' programs use farandole.torch."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

version: str
dtypes: dict[str, int]
reduce_ops: dict[str, int]
devices: dict[str, int]
operations: dict[str, int]
xla_call: Any  # a capsule for jax.ffi.register_ffi_target()

class LeaveCause(Enum):
    """Why a rank leaves its job. ORDERLY: the program has ended or has called shutdown().
    EXCEPTION: the program ends because of an exception. GROUP_LOST: the program ends because of an
    exception that the loss of another rank has caused."""

    ORDERLY = ...
    EXCEPTION = ...
    GROUP_LOST = ...

class SharedArray:
    """A writable array in the engine's memory, with DLPack and the buffer protocol."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class BufferView:
    """A description of borrowed memory: the code of its dtype, its shape, and the addresses of
    input and output. `device` is the code of the device on which the user's tensor is. This code
    must be the same on all ranks."""

    def __init__(
        self, dtype: int, shape: tuple[int, ...], input: int, output: int, device: int = ..., /
    ) -> None: ...

class Call:
    """A collective call with its arguments and the memory that it uses. The functions below make
    calls. If the name of a call is empty, the engine chooses a name."""

    @property
    def handle(self) -> int:
        """The number that identifies the call in the engine's methods. It is 0 until submit() sets
        it. submit() does not return the number, because the caller would lose a return value if a
        signal handler raised an exception."""

def allreduce(
    name: str, group: int, buffer: BufferView, op: int, prescale: float, postscale: float, /
) -> Call: ...
def broadcast(name: str, group: int, buffer: BufferView, root: int, /) -> Call: ...
def allgather(name: str, group: int, buffer: BufferView, /) -> Call: ...
def alltoall(name: str, group: int, buffer: BufferView, splits: tuple[int, ...], /) -> Call: ...
def reducescatter(
    name: str, group: int, buffer: BufferView, op: int, prescale: float, postscale: float, /
) -> Call: ...
def join(name: str, group: int, /) -> Call: ...
def barrier(name: str, group: int, /) -> Call: ...
def send(
    name: str, group: int, buffer: BufferView, message: tuple[int, int, str], call_error: str, /
) -> Call:
    """Return a call that sends a message. `message` has the receiving rank, the tag and the
    channel. If `call_error` is not empty, the call is invalid and fails on both ranks."""

def recv(
    name: str, group: int, buffer: BufferView, message: tuple[int, int, str], call_error: str, /
) -> Call:
    """Return a call that receives a message. `message` has the sending rank (-1: any rank), the tag
    and the channel."""

def invalid_call(name: str, group: int, call_error: str, /) -> Call:
    """Return a call that takes the place of a call that this rank cannot make. The new call
    announces `call_error`, and all members get this error."""

def scattered_rows(rows: int, members: int, member: int, /) -> int: ...
def job_number() -> int:
    """Return how many jobs this process has joined."""

def set_job_of_program(program: int, job: int) -> None:
    """Record that a compiled program of JAX was traced in this job. The calls of the program have
    the number `program`, and are rejected in other jobs. If several jobs are recorded for one
    number, the latest job counts."""

def report_end(reason: str, cause: LeaveCause, traceback: str) -> None: ...

class TensorReader:
    """Reads tensors without calling Python. `exchange_api` is the framework's table of functions
    for this purpose (DLPack's C exchange API), such as torch.Tensor.__dlpack_c_exchange_api__."""

    def __init__(self, exchange_api: Any, /) -> None: ...
    def view_of(self, tensor: Any, /) -> BufferView | None:
        """Return a view whose input and output are the tensor. Return None if the tensor is not
        contiguous, not in host memory or of an unknown dtype, or if the framework cannot describe
        it. The tensor must be of the type that `exchange_api` belongs to."""

class ProcessContext:
    """The memory of allocate() and the connection to the launcher, for all engines of one process.
    So memory from allocate() stays shared when the process leaves its job and joins another."""

    def __init__(self) -> None: ...
    def announced_end(self, limit: float) -> str: ...
    def set_has_state(self) -> None:
        """Record that this process has the state of the training. When the process asks the
        launcher of an elastic job for its next rank, it reports this."""
    def wait_for_other_ranks(self) -> None:
        """If this process is rank 0 of a job over several hosts that another launcher has started,
        wait until the other ranks have left the job. Without rank 0, they could not add groups."""
    def close(self) -> None:
        """Free what the context itself owns. If this process is rank 0 of a job over several hosts
        that another launcher has started, first wait until the other ranks have formed their
        groups, for a few seconds at most."""

class Engine:
    def __init__(
        self,
        context: ProcessContext,
        groups: Sequence[Sequence[int]],
        rendezvous_id: str,
        topology: Sequence[int],
        is_subset_of_job: bool,
        on_one_host: bool,
    ) -> None:
        """Join a job. `topology` is (rank, size) in a job whose ranks all pass the same
        `rendezvous_id`. If `topology` is empty, the launcher's environment variables give rank
        and size, and `rendezvous_id` is appended to the id of the launcher's job.
        `is_subset_of_job` says that the engine connects only some ranks of a larger job. The
        launcher's reports and the timeline then leave this engine out. If the ranks are
        `on_one_host`, they find each other without a launcher and without the job's Store."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def is_homogeneous(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def epoch(self) -> int:
        """Return how often the group of an elastic job has been formed, or 0 in other jobs."""
    def is_change_announced(self) -> bool:
        """Return whether the launcher of an elastic job wants to change the members."""
    @property
    def settings(self) -> dict[str, str]:
        """Return the values of the settings that must be equal on all ranks, by variable name."""
    @property
    def forked(self) -> bool: ...
    def ranks_of(self, group: int, /) -> list[int]: ...
    def add_group(self, ranks: Sequence[int], /) -> int: ...
    def remove_group(self, group: int, /) -> None: ...
    def start_timeline(self, path: bytes, mark_cycles: bool, /) -> None: ...
    def stop_timeline(self) -> None: ...
    def allocate(self, bytes: int) -> SharedArray: ...
    def is_shared(self, address: int, bytes: int, /) -> bool:
        """Return whether the other ranks can map this memory, so that calls need no copy of it."""
    def submit(self, call: Call, caller_waits: bool, /) -> None:
        """Submit a call. If `caller_waits`, the caller must wait for the call at once, and the call
        runs on this thread if possible. submit() may return before the call is done, so that
        Python can handle signals; wait() then continues."""
    def run(self, call: Call, /) -> None:
        """Run a call on this thread until it is done, and release it. Raise its error if it fails.
        If a signal handler raises, the call is still in flight, and its handle is not 0."""
    def submit_batch(self, calls: list[Call], caller_waits: bool, /) -> None: ...
    def poll(self, handle: int, /) -> bool: ...
    def wait(self, handle: int, /) -> None: ...
    def drop(self, handle: int, /) -> None: ...
    def check_outcome(self, handle: int, /) -> None:
        """Raise the error of a finished call, if it has failed. This method and the peek methods
        may be called several times. The call keeps its name until release()."""
    def check_call_outcome(self, call: Call, /) -> None:
        """Do what check_outcome() does; this still works after collect()."""
    def collect(self, call: Call, /) -> None:
        """Wait for a call, release it, and raise its error if it fails. Several threads may collect
        the same call, even after an interrupted wait. All of them get the same outcome."""
    def peek_received(
        self, handle: int, buffer: BufferView, /
    ) -> tuple[SharedArray, list[int]]: ...
    def peek_source(self, handle: int, /) -> int:
        """Return the rank that has sent the message of this receive; -1 for other calls."""
    def peek_last_joined(self, handle: int, /) -> int: ...
    def release(self, handle: int, /) -> None:
        """Forget a finished call, so that its name may be used again."""
    def shutdown(self, reason: str, cause: LeaveCause, traceback: str) -> None: ...
    def abandon_after_fork(self) -> None: ...
