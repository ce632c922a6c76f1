"""What the operations of the process group return: torch's Work over a Handle."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from farandole.handle import BatchHandle, Handle

_NO_TIMEOUT = datetime.timedelta(0)


class Work(dist.Work):
    """One call. It goes on by itself once it has been made.

    Timeouts have no meaning: a call ends when all ranks have made it, or with the error that says
    which rank is gone. FARANDOLE_STALL_LIMIT limits the waiting for a rank that only sleeps.
    """

    def __init__(
        self,
        handle: Handle[Any] | BatchHandle[Any],
        outputs: Sequence[torch.Tensor],
        source_rank: int = -1,
    ) -> None:
        super().__init__()
        self._handle = handle
        self._outputs = outputs
        self._source = source_rank
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        """Returns True when the result is there; raises what went wrong."""
        try:
            self._handle.wait()
        finally:
            self._complete_future()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._handle.poll()

    def exception(self) -> Exception | None:
        if not self._handle.poll():
            return None
        try:
            self._handle.wait()
        except Exception as error:
            return error
        return None

    def is_success(self) -> bool:
        return self._handle.poll() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._outputs)

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of outputs. Within a hook of backward() it is completed at the end
        of backward() at the latest; elsewhere it is complete already, so that this call waits."""
        if self._future is None:
            self._future = _Future(self)
        if not self._future.done():
            # In a callback at the end of backward(), which might wait for this future, there is no
            # node; a callback of ours would come too late then.
            in_hook = torch._C._current_autograd_node() is not None
            if in_hook and not self._handle.poll():
                _finish_after_backward(self)
            else:
                self._wait_quietly()
        return self._future

    def _wait_quietly(self) -> None:
        """What went wrong is in the future."""
        with contextlib.suppress(Exception):
            self._handle.wait()
        self._complete_future()

    def _complete_future(self) -> None:
        future = self._future
        # An interrupted wait() leaves a call that goes on.
        if future is None or future.done() or not self._handle.poll():
            return
        error = self.exception()
        if error is None:
            future.set_result(list(self._outputs))
        else:
            future.set_exception(error)


class _Future(torch.futures.Future[list[torch.Tensor]]):
    """A hook of backward() may wait for it, and nobody else would make the progress then."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> list[torch.Tensor]:
        self._work._wait_quietly()
        return super().wait()


class _AfterBackward:
    """Works of one backward() whose futures somebody waits for when it has computed all.

    Such a future needs no thread: the one that is about to wait for it makes the progress itself.
    """

    def __init__(self) -> None:
        self.works: list[Work] = []

    def __call__(self) -> None:
        """The callbacks run in the order in which they were queued; that of
        DistributedDataParallel, which waits for the futures, is queued after its last bucket."""
        failure: Exception | None = None
        for work in self.works:
            work._wait_quietly()
            failure = failure or work.exception()
        if failure is not None:
            raise failure


# By the number of the backward(), which alone holds the callback: with one that raises, it goes.
_after_backward: WeakValueDictionary[int, _AfterBackward] = WeakValueDictionary()


def _finish_after_backward(work: Work) -> None:
    task = torch._C._current_graph_task_id()
    callback = _after_backward.get(task)
    if callback is None:
        callback = _after_backward[task] = _AfterBackward()
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    callback.works.append(work)
