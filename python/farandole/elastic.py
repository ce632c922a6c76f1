"""State that survives a failure, and the loop that goes on from it; the same for every frontend.

Jobs have a fixed size so far: when a member is gone for good, the error comes out of run_fn().
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from farandole import lifecycle
from farandole.errors import CallError, FarandoleError

Result = TypeVar("Result")


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818, Horovod's name
    """The members of the job change: what run_fn() calls is to end and will be called again.

    `skip_sync`: the state is the same on all ranks, so it need not be sent.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the members of the job change")
        self.skip_sync = skip_sync


class State:
    """What a training must not lose. `bcast_object(obj)` gives all ranks that of rank 0, and
    `get_rank()` is this one. To be derived from: save(), restore() and sync() are to be written.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """To be called after the job has been formed anew, in this order: to adapt the learning
        rate to the size, for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by run_fn() after the job has been formed anew."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state: a failure from now on goes back to here. Costs a copy of the state, so
        rarely enough."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends the call when the members of the job change: never, while jobs have a fixed size."""

    def save(self) -> None:
        """Keeps a copy in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to that copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0. A call of all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts to a job that was formed anew."""


class ObjectState(State):
    """Any objects that can be pickled, as attributes: `ObjectState(..., epoch=0, batch=0)`."""

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **objects: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(objects)
        for name, value in objects.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        ObjectState.save(self)

    def save(self) -> None:
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """The objects of rank 0, as they are now; on all ranks they count as saved then."""
        if not self._names:
            return
        mine = {name: getattr(self, name) for name in self._names}
        for name, value in self._bcast_object(mine).items():
            setattr(self, name, value)
        ObjectState.save(self)


def run_fn(function: Callable[..., Result], reset: Callable[[], None]) -> Callable[..., Result]:
    """Wraps function(state, ...): all ranks get rank 0's state before, and when it fails with a
    FarandoleError that is no CallError, the state goes back to the last commit, `reset` forms the
    job anew, and function is called again, as often as that happens. What `reset` or the state's
    sync() raise comes out: nobody is left to go on with.
    """

    @functools.wraps(function)
    def until_done(state: State, *args: Any, **options: Any) -> Result:
        skip_sync = False
        while True:
            if not skip_sync:
                state.sync()
            try:
                return function(state, *args, **options)
            except CallError:
                raise  # a mistake of the program would come again
            except FarandoleError:  # also that which programs of Horovod raise themselves
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return until_done


def reset_job() -> None:
    """Leaves the job and joins it again, with all other ranks that do so."""
    lifecycle.shutdown()
    lifecycle.init()
