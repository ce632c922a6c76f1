"""torch's Work for a Handle: what the operations of the process group return."""

from __future__ import annotations

import contextlib
import datetime
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from farandole import lifecycle
from farandole.errors import GroupLostError
from farandole.handle import BatchHandle, Handle
from farandole.torch.dynamo import outside_dynamo

_NO_TIMEOUT = datetime.timedelta(0)
# What an elastic program must do each time its job has been formed again.
REINITIALIZE_ADVICE = (
    'call torch.distributed.destroy_process_group(), then init_process_group("farandole", '
    'init_method="farandole://"), and make again what uses the process group, such as a '
    "DistributedDataParallel"
)

# In torch before 2.7, the C++ code keeps only the C++ part of a Work alive, and wait() would never
# return. So this set keeps each Work alive until the program has waited for it.
_unfinished_works: set[Work] | None = set() if torch.__version__ < (2, 7) else None
# In later versions, DistributedDataParallel.join(divide_by_initial_world_size=False) keeps only the
# C++ part of a Work, whose output is one number. So keep the last Works with small outputs alive.
_SMALL_ELEMENTS_MAX = 16
_last_small_works: deque[Work] = deque(maxlen=1024)


class Work(dist.Work):
    """One call of a process group. The call makes progress even if the program does not wait.

    Timeouts have no effect: a call ends when all ranks have made it, or with an error that names
    the lost rank. FARANDOLE_STALL_LIMIT limits the time to wait for a rank that is alive but does
    not make the call.
    """

    def __init__(
        self,
        handle: Handle[Any] | BatchHandle[Any],
        outputs: Sequence[torch.Tensor],
        rank_of_sender: Callable[[Any], int] = lambda result: -1,
    ) -> None:
        super().__init__()
        self._handle = handle
        self._outputs = outputs
        self._rank_of_sender = rank_of_sender
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._was_waited_for = False
        if _unfinished_works is not None:
            _unfinished_works.add(self)
        if 0 < sum(map(torch.Tensor.numel, outputs)) <= _SMALL_ELEMENTS_MAX:
            _last_small_works.append(self)

    @outside_dynamo
    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the result and return True, or raise the call's error."""
        try:
            self._handle.wait()
        except GroupLostError as error:
            raise with_advice(error) from None
        finally:
            self._was_waited_for = self._handle.poll()
            self._complete_future()
            _forget(self)
        return True

    def synchronize(self) -> None:
        self.wait()

    @outside_dynamo
    def is_completed(self) -> bool:
        return self._handle.poll()

    @outside_dynamo
    def exception(self) -> Exception | None:
        if not self._handle.poll():
            return None
        try:
            self._handle.wait()
        except Exception as error:
            # The future keeps the error. The error must not keep the frames of the program alive. A
            # frame may hold a DistributedDataParallel; its hooks would stay registered on the
            # parameters.
            return with_advice(error).with_traceback(None)
        return None

    def is_success(self) -> bool:
        return self._handle.poll() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._outputs)

    def source_rank(self) -> int:
        """Wait for a receive and return the rank that has sent. For other calls, return -1."""
        return self._rank_of_sender(self._handle.wait())

    _source_rank = source_rank

    @outside_dynamo
    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the list of outputs. Within a hook of backward(), the future is
        complete at the end of backward(), or when the program has waited for it. Outside of such a
        hook, get_future() waits for the result, so the future is complete.

        Raises:
            Exception: Within a hook: the call has failed before get_future(). A
                DistributedDataParallel would use the error in the future as a result, and crash.
        """
        if self._future is None:
            self._future = _WorkFuture(self)
        is_in_hook = torch._C._current_autograd_node() is not None
        if is_in_hook and (error := self.exception()) is not None:
            raise error
        if not self._future.done():
            # Outside of a hook, wait here: an earlier callback may wait for this future at the end
            # of backward(). Callbacks run in the order in which they were queued, so a new callback
            # could not complete the future in time. Within a hook, do not complete the future even
            # if the call has ended, unless the program has waited for it: then() may make another
            # call, and the ranks must make their calls in the same order.
            if is_in_hook and not self._was_waited_for:
                _complete_after_backward(self)
            else:
                self._wait_without_raising()
        return self._future

    def _wait_without_raising(self) -> None:
        """Wait for the call and complete the future. Do not raise: the future gets the error."""
        with contextlib.suppress(Exception):
            self._handle.wait()
        self._complete_future()

    def _complete_future(self) -> None:
        future = self._future
        # After an interrupted wait(), the call is still in flight.
        if future is None or future.done() or not self._handle.poll():
            return
        error = self.exception()
        if error is None:
            future.set_result(list(self._outputs))
        else:
            future.set_exception(error)
        _forget(self)


def with_advice(error: Exception) -> Exception:
    """Return the error of a call. If an elastic job has lost its group, add what the program must
    do."""
    if not isinstance(error, GroupLostError) or not lifecycle.is_elastic():
        return error
    return GroupLostError(
        f"{error}. When hvd.elastic has formed the job again, {REINITIALIZE_ADVICE}"
    )


def _forget(work: Work) -> None:
    if _unfinished_works is not None:
        _unfinished_works.discard(work)


class _WorkFuture(torch.futures.Future[list[torch.Tensor]]):
    """A future that a hook of backward() may wait for; its then() returns such a future, too.
    wait() first waits for the call, because no other thread completes the future."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> list[torch.Tensor]:
        self._work._wait_without_raising()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        chained_future = _WorkFuture(self._work)

        def finish(future: Any) -> None:
            try:
                chained_future.set_result(callback(future))
            except Exception as error:
                chained_future.set_exception(error)

        self.add_done_callback(finish)
        return chained_future


class _BackwardEndCallback:
    """A callback that completes the futures of one backward() when all gradients are computed.

    DistributedDataParallel then waits for these futures in the same thread, so this callback
    completes them in that thread, and no other thread is needed.
    """

    def __init__(self) -> None:
        self.works: list[Work] = []

    def __call__(self) -> None:
        """Complete the futures. Callbacks run in the order in which they were queued. This one was
        queued first: DistributedDataParallel queues its own callback after its last bucket."""
        failure: Exception | None = None
        for work in self.works:
            work._wait_without_raising()
            failure = failure or work.exception()
        if failure is not None:
            raise failure


# The callbacks by the number of the backward pass. Only the pass keeps its callback alive, so the
# entry disappears when the pass ends.
_callbacks_by_pass: WeakValueDictionary[int, _BackwardEndCallback] = WeakValueDictionary()


def _complete_after_backward(work: Work) -> None:
    pass_number = torch._C._current_graph_task_id()
    callback = _callbacks_by_pass.get(pass_number)
    if callback is None:
        callback = _callbacks_by_pass[pass_number] = _BackwardEndCallback()
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    callback.works.append(work)
