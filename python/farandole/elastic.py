"""State that survives failures, and the loop that continues from it, for every frontend.

In an elastic job (`farandole run --min-workers`), the members that are left form a new group, and
new workers join them later. In a job of fixed size, run_fn() raises the error if a member is gone
for good.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from farandole import lifecycle
from farandole.comparison import allreduce_max
from farandole.errors import CallError, FarandoleError
from farandole.group import global_process_set
from farandole.objects import broadcast_object

Function = TypeVar("Function", bound=Callable[..., Any])


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818, Horovod's name
    """Raised when the members of the job change. It ends the function that run_fn() has wrapped,
    and run_fn() calls the function again.

    Args:
        skip_sync: Whether the state is the same on all ranks, so that it need not be sent.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the members of the job change")
        self.skip_sync = skip_sync


class HostUpdateResult(enum.IntFlag):
    """How the hosts of a job have changed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The state that a training must not lose. Subclasses implement save(), restore() and sync().

    Args:
        bcast_object: A function that returns rank 0's object on all ranks.
        get_rank: A function that returns this rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._host_updates = HostUpdateResult.no_update

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Add functions to call, in this order, after the job has been formed again.

        They can, for example, adapt the learning rate to the number of ranks.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the new job and call the callbacks. run_fn() calls this method after
        forming the job again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, so that training continues from here after a failure.

        A commit costs a copy of the state, so do not call it too often.
        """
        self.save()
        self.check_host_updates()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Make the next check_host_updates() raise HostsUpdatedInterrupt. A program that calls this
        method must do so on all ranks. Farandole itself never calls it, because
        check_host_updates() asks the launcher."""
        self._host_updates |= update_res

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt if new workers want to join an elastic job, or if
        on_hosts_updated() was called since the last check.

        All ranks must call it after the same step. In an elastic job, it is an allreduce of one
        number, so it blocks until all ranks have called it.
        """
        updates, self._host_updates = self._host_updates, HostUpdateResult.no_update
        if _is_change_announced():
            updates |= HostUpdateResult.added
        if updates != HostUpdateResult.no_update:
            raise HostsUpdatedInterrupt(skip_sync=updates == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of the state in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the copy of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0. All ranks must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a job that was formed again."""


class ObjectState(State):
    """Keep any picklable objects as attributes: `ObjectState(..., epoch=0, batch=0)`."""

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
        """Give all ranks the objects of rank 0 as they are now, and save them."""
        if not self._names:
            return
        mine = {name: getattr(self, name) for name in self._names}
        for name, value in self._bcast_object(mine).items():
            setattr(self, name, value)
        ObjectState.save(self)

    if TYPE_CHECKING:  # the attributes have the names that the program gives

        def __getattr__(self, name: str) -> Any: ...


class StateHandler:
    """Save, restore and send one value. Derive from it for types of your own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep a copy in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the copy of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the value of rank 0. All ranks must call it. The state saves the value
        when it has sent all its values."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle this value from now on."""
        self.value = value
        self.save()


# Pairs of a type and the handler for its values. The first pair that fits a value is used.
HandlerRegistry: TypeAlias = list[tuple[type, type[StateHandler]]]


class StateDictHandler(StateHandler):
    """Handle a value with state_dict() and load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def saved(self) -> Any:
        """Return a copy of the saved state, because the value may change the objects that it
        loads."""
        return copy.deepcopy(self._saved)

    def restore(self) -> None:
        self.value.load_state_dict(self.saved())


class HandledState(ObjectState):
    """Keep values as attributes. Save each value with the handler of its type. If its type has no
    handler, save the value as ObjectState does."""

    _handlers: dict[str, StateHandler]

    def __init__(self, registry: HandlerRegistry, values: dict[str, Any]) -> None:
        handlers = {name: _handler_of(value, registry) for name, value in values.items()}
        self.__dict__["_handlers"] = {name: h for name, h in handlers.items() if h is not None}
        for name in self._handlers:
            self.__dict__[name] = values[name]
        objects = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, lifecycle.rank, **objects)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (handler := self._handlers.get(name)) is not None:
            handler.set_value(value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        # Nothing is saved before everything is sent: a failure meanwhile must not leave a mixture.
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        for handler in self._handlers.values():
            handler.save()


def _handler_of(value: Any, registry: HandlerRegistry) -> StateHandler | None:
    for value_type, handler_type in registry:
        if isinstance(value, value_type):
            return handler_type(value)
    return None


def run_fn(func: Function, reset: Callable[[], None]) -> Function:
    """Wrap func(state, ...) so that it continues from the last commit after a failure.

    Before each call of `func`, all ranks get rank 0's state. If this or `func` raises a
    FarandoleError other than a CallError, the state returns to the last commit, `reset` forms the
    job again, and `func` is called again. This repeats for every such failure. Errors of `reset`
    are raised.
    """

    @functools.wraps(func)
    def run_until_done(state: State, *args: Any, **options: Any) -> Any:
        skip_sync = must_reset = False
        while True:
            try:
                if must_reset:
                    must_reset = False
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                    lifecycle.set_has_state()
                return func(state, *args, **options)
            except CallError:
                raise  # calling again would repeat the program's mistake
            except FarandoleError:  # the program itself may also raise one, as with Horovod
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                # New workers of an elastic job always need the state.
                skip_sync = interrupt.skip_sync and not _is_elastic()
            reset()
            must_reset = True

    return cast(Function, run_until_done)


def _is_elastic() -> bool:
    return lifecycle.is_initialized() and lifecycle.engine().epoch > 0


def _is_change_announced() -> bool:
    """Return on all ranks whether the launcher wants to change the members of an elastic job."""
    if not _is_elastic():
        return False
    # The ranks would learn it at different times, so rank 0 asks for all.
    is_announced = lifecycle.rank() == 0 and lifecycle.engine().is_change_announced()
    return bool(allreduce_max([is_announced], "elastic.change", global_process_set)[0])


def reset_job() -> None:
    """Leave the job, and join it again with all other ranks that call reset_job(). In an elastic
    job, these are the ranks that are left, and new workers that wait."""
    lifecycle.shutdown()
    lifecycle.init()
