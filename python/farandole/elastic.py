"""State that survives failures, and the loop that continues from it, for every frontend.

In an elastic job (`farandole run --min-workers`), the remaining members form a new group after a
failure, and new workers join it later. In a job of fixed size, run_fn() raises the error of the
failure if the process of a member has ended, because no new worker replaces it.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from farandole import calls, core, lifecycle
from farandole.comparison import allreduce_max, gather_error_texts, table, texts_if_different
from farandole.errors import CallError, FarandoleError, MisuseError
from farandole.group import global_process_set
from farandole.objects import broadcast_object

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")

# A worker exits with this code if its job ends early, after all ranks have saved their state
# (kEndedEarlyExitCode in C++). The exit code of the launcher depends on this code.
ENDED_EARLY = 75


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818, Horovod's name
    """Raised when the members of the job change. The exception ends the user's function that
    run_fn() has wrapped, and run_fn() calls this function again.

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

    _number = 0  # 0 before the first use; then 1, 2 …, in the order of first use
    _has_step = False
    _commits = 0  # the number of commits, or with a Step, the number of finished steps

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._end_callbacks: list[Callable[[], None]] = []
        self._host_updates = HostUpdateResult.no_update

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Add functions to call, in this order, after the job has been formed again.

        They can, for example, adapt the learning rate to the number of ranks.
        """
        self._reset_callbacks.extend(callbacks)

    def register_end_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Add functions to call, in this order, if the job has to end early because its launcher is
        lost. These functions should save the state to a file.

        All ranks call the functions after the same step, in the same order, so the functions may
        make collective calls such as an allgather. Then the process exits with the code 75. A
        process that still runs 9 s after the loss of the launcher is killed, so the rest of the
        step and all functions together must finish in this time. If the job ends for another
        reason, the functions are not called.

        Example::

            def save_checkpoint():
                if hvd.rank() == 0:
                    torch.save(model.state_dict(), "checkpoint.pt")

            state.register_end_callbacks([save_checkpoint])
        """
        self._end_callbacks.extend(callbacks)

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
        self._commits += 1
        self.check_host_updates()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Make the next check_host_updates() raise HostsUpdatedInterrupt. A program that calls this
        method must call it on all ranks. Farandole itself never calls it, because
        check_host_updates() asks the launcher."""
        self._host_updates |= update_res

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt if workers want to join or to leave an elastic job, or if
        on_hosts_updated() was called since the last check.

        All ranks must call this method after the same step. In an elastic job, the method makes an
        allreduce of two numbers, so it blocks until all ranks have called it.

        If the launcher is lost, save the state, call the functions of register_end_callbacks(), and
        raise SystemExit.
        """
        updates, self._host_updates = self._host_updates, HostUpdateResult.no_update
        announcements = _agree_on_announcements()
        if announcements.end:
            self._end_early()
        if announcements.change:
            # Report `added` even if workers only leave, so that all ranks get the state again.
            updates |= HostUpdateResult.added
        if updates != HostUpdateResult.no_update:
            raise HostsUpdatedInterrupt(skip_sync=updates == HostUpdateResult.removed)

    def _end_early(self) -> NoReturn:
        self.save()
        for callback in self._end_callbacks:
            callback()
        callback_text = (
            "its end callbacks are done" if self._end_callbacks else "there are no end callbacks"
        )
        # If only another rank has learned the reason so far, announced_end() returns "" here.
        reason = lifecycle.announced_end() or "the launcher of this job is lost"
        _exit_with_message(
            ENDED_EARLY, f"{reason}; this rank ends after a commit, and {callback_text}"
        )

    def save(self) -> None:
        """Keep a copy of the state in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the copy of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0. All ranks must call this method."""
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
        own_objects = {name: getattr(self, name) for name in self._names}
        for name, value in self._bcast_object(own_objects).items():
            setattr(self, name, value)
        ObjectState.save(self)

    if TYPE_CHECKING:  # the program chooses the names of the attributes

        def __getattr__(self, name: str) -> Any: ...


class StateHandler:
    """Save, restore and send one value. To handle your own types, derive from this class."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def check(self) -> None:
        """Raise CallError if save() would not save the whole value now."""

    def save(self) -> None:
        """Keep a copy in the memory of this rank."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the copy of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the value of rank 0. All ranks must call sync(). The method need not save
        the value, because the State saves all its values after it has sent them."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Replace the value that this object handles."""
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

    def sync(self) -> None:
        state = broadcast_object(self.value.state_dict(), 0, "elastic.state_dict")
        self.value.load_state_dict(state)


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
        # A subclass may set attributes before __init__() of this class has made `_handlers`.
        handlers: dict[str, StateHandler] = self.__dict__.get("_handlers", {})
        if (handler := handlers.get(name)) is not None:
            handler.set_value(value)

    def check_host_updates(self) -> None:
        self._check_handlers()
        super().check_host_updates()

    def _check_handlers(self) -> None:
        for handler in self._handlers.values():
            handler.check()

    def save(self) -> None:
        self._check_handlers()
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        # Send all values before saving any. Otherwise, a failure between two values would leave a
        # mixture of old and new values.
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


# Takes an error of a framework. If an error of farandole.errors has caused it, returns that error.
# Otherwise, returns the framework's error itself.
CauseFinder: TypeAlias = Callable[[Exception], Exception]


def run_fn(
    func: Function, reset: Callable[[], None], find_cause: CauseFinder = lambda error: error
) -> Function:
    """Wrap func(state, ...) so that it continues from the last commit after a failure.

    Before each call of `func`, all ranks get rank 0's state. If this transfer or `func` raises a
    FarandoleError other than a CallError, the state returns to the last commit, `reset` forms the
    job again, and `func` is called again. This repeats for every such failure. Errors of `reset`
    are raised. `find_cause` returns the FarandoleError that has caused an error of a framework.
    """

    @functools.wraps(func)
    def run_until_done(state: State, *args: Any, **options: Any) -> Any:
        recovery = _Recovery(
            state, f"{getattr(func, '__name__', 'a function')}()", reset, find_cause
        )
        with _training_lock_held():
            return recovery.run(lambda: func(state, *args, **options))

    return cast(Function, run_until_done)


class Step:
    """Repeat a failed step of a training loop.

    If a call of the step fails, the `with` block suppresses the error, and the state returns to its
    values before the step. Then ready() forms the job again, and the loop repeats the step. So
    everything that belongs to a step must be inside the block, and the conditions of the loop must
    depend on the state only. A `for` loop over batches would continue with the next batch instead.
    ready() also saves the state, so the program need not call commit().

    The block suppresses only the errors after which `hvd.elastic.run` calls the user's function
    again: each FarandoleError other than a CallError. After any other error, ready() raises a
    MisuseError. A block that ends by `break` or `return` on all ranks counts as a step, but only
    the next ready() saves the state.

    A program needs one state, and one Step for all its loops. Any thread can use the Step, but only
    one thread at a time.

    Args:
        state: The state, such as a TorchState. Its attributes may be changed between two steps.

    Raises:
        MisuseError: The state has a Step already.

    Example::

        step = hvd.elastic.Step(state)
        while step.ready() and state.batch < 1000:
            with step:
                ...  # train with one batch, or with several
                state.batch += hvd.size()
    """

    def __init__(self, state: State) -> None:
        if state._has_step:
            raise MisuseError(
                "this state has a Step already: make one Step before the first loop, and use it in "
                "all loops"
            )
        state._has_step = True
        self._state = state
        self._recovery = _Recovery(state, "a Step", reset_job, self._find_cause)
        self._job = 0  # the number of the job at the last call of ready()
        self._may_step_begin = self._is_step_done = self._has_step_failed = False
        self._fatal_error_name = ""  # the class of an error after which no step may begin

    @staticmethod
    def _find_cause(error: Exception) -> Exception:
        """If an error of farandole.errors has caused this error of a framework, return that error.
        Otherwise, return the framework's error itself."""
        return error

    def ready(self) -> bool:
        """Finish the last step on all ranks, save the state, and return True.

        The first call gives all ranks the state of rank 0. After a failure, or if workers want to
        join or to leave, ready() forms the job again. It then gives all ranks the state that rank 0
        had after the last finished step. The next `with` block begins with this state.

        All ranks must call ready() before each step and after the last step. It blocks until all
        ranks have called it. A second call before the step only saves the state.

        Raises:
            MisuseError: A step or a function of `hvd.elastic.run` is running, in this thread or in
                another one. Or a step raised a CallError, or an error that is not a FarandoleError.
            CallError: The ranks are not in the same training, or rank 0 was lost before it had
                given its state to the others.
            FarandoleError: The job cannot be formed again. In a job of fixed size, this is a
                GroupLostError if a rank is gone.
        """
        if self._fatal_error_name:
            raise MisuseError(
                f"the last step ended with a {self._fatal_error_name}, so the ranks may have "
                "different states: handle such errors inside the step, on all ranks in the same way"
            )
        with _training_lock_held():
            self._may_step_begin = False
            if self._has_step_failed:  # the program may have changed the state since __exit__()
                self._recovery.restore()
            if self._job != core.job_number():  # the program itself has joined another job
                self._recovery.must_sync = True
            if self._recovery.must_sync:
                self._is_step_done = False
            self._has_step_failed = False
            self._recovery.run(self._finish)
            self._job, self._may_step_begin = core.job_number(), True
        return True

    def _finish(self) -> None:
        # Clear the flag first. If this method fails, ready() calls it again, perhaps in a job with
        # new ranks. On those ranks the flag is not set, because they have not finished a step.
        was_done, self._is_step_done = self._is_step_done, False
        if was_done:
            # All ranks must notice a failure before they save the state. A rank does not know of
            # the failure if its own calls have succeeded, or if the program has hidden the error.
            lifecycle.wait_for_frameworks()
            if not _is_elastic():  # in an elastic job, check_host_updates() waits for all ranks
                calls.barrier()
            try:
                self._state.check_host_updates()
            except HostsUpdatedInterrupt:
                self._state.save()
                self._state._commits += 1
                # Sync again: after a GroupLostError, another rank may return to an older state.
                self._recovery.must_sync = True
                raise
        self._state.save()
        self._state._commits += was_done

    def __enter__(self) -> None:
        if not self._may_step_begin:
            raise MisuseError(
                "a step begins without ready(): write `while step.ready() and …:` around "
                "`with step:`, because a `for` loop would not repeat a failed step"
            )
        _acquire_training_lock()
        self._may_step_begin = False

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> bool:
        _training_lock.release()
        if error is None:
            self._is_step_done = True
            return False
        cause = self._find_cause(error) if isinstance(error, Exception) else error
        if self._recovery.prepare_to_continue_after(cause):
            # Restore the state also after a HostsUpdatedInterrupt, because the step is repeated.
            self._recovery.restore()
            self._has_step_failed = True
            return True
        self._fatal_error_name = type(cause).__name__
        if cause is error:
            return False
        raise cause from error


class _Recovery:
    """Gives all ranks the state. After a failure, returns the training to its last saved state."""

    def __init__(
        self, state: State, caller_name: str, reset: Callable[[], None], find_cause: CauseFinder
    ) -> None:
        if state._number == 0:
            state._number = next(_state_numbers)
        self._training_text = f"state {state._number} ({type(state).__name__}) in {caller_name}"
        self._state, self._reset, self._find_cause = state, reset, find_cause
        self._must_form_job = self._must_adapt_state = False
        self.must_sync = True
        self._began_as_rank_0: bool | None = None  # None until run() begins
        self._failures = self._commits_before_failure = 0

    def run(self, action: Callable[[], Result]) -> Result:
        """If needed, give all ranks the state. Then call `action` and return its result. After a
        failure, form the job again, and repeat both. Errors of `reset` are raised."""
        if self._began_as_rank_0 is None:
            self._state.save()  # the program may have loaded a checkpoint into the state
            self._began_as_rank_0 = not lifecycle.is_initialized() or lifecycle.rank() == 0
        while True:
            if self._must_form_job:
                self._form_job_again()
            try:
                self._prepare()
                return action()
            except Exception as error:
                self._raise_if_final(error)

    def _form_job_again(self) -> None:
        _exit_if_job_ends(0)
        try:
            self._reset()
        except FarandoleError:
            _exit_if_job_ends(END_NOTICE_SECONDS_MAX)
            raise
        self._must_form_job, self._must_adapt_state = False, True

    def _raise_if_final(self, error: Exception) -> None:
        cause = self._find_cause(error)
        if self.prepare_to_continue_after(cause):
            return
        if cause is error:
            raise error
        raise cause from error

    def _prepare(self) -> None:
        if self._must_adapt_state:
            self._must_adapt_state = False
            self._state.on_reset()
        if self.must_sync:
            self._check_before_sync()
            self._state.sync()
            lifecycle.set_has_state()
            self.must_sync = False

    def _check_before_sync(self) -> None:
        if not lifecycle.is_initialized():
            return  # a program with its own State class may train without init()
        is_first_state = self._began_as_rank_0 or lifecycle.has_state()
        _check_rank_0_has_state(lifecycle.rank() > 0 or is_first_state)
        _check_same_on_all_ranks(self._training_text)

    def prepare_to_continue_after(self, error: BaseException) -> bool:
        """Prepare the training to continue after this error: restore the state if necessary, and
        let run() form the job again. Return False if the training cannot continue."""
        if isinstance(error, CallError):
            return False  # repeating the call would repeat the program's mistake
        if isinstance(error, FarandoleError):  # raised by a call or by the program itself
            self._show_if_repeated(error)
            self.restore()
        elif isinstance(error, HostsUpdatedInterrupt):
            # New workers of an elastic job always need the state.
            self.must_sync = self.must_sync or not error.skip_sync or _is_elastic()
        else:
            return False
        self._must_form_job = True
        return True

    def _show_if_repeated(self, error: FarandoleError) -> None:
        """Print the 2nd, 4th, 8th ... failure since the last commit or step. Otherwise, a failure
        that repeats endlessly may stay unnoticed: the launcher reports only why workers end, and
        not why calls fail while all workers live, as for lack of memory."""
        if self._commits_before_failure != self._state._commits:
            self._commits_before_failure, self._failures = self._state._commits, 0
        self._failures += 1
        if self._failures > 1 and self._failures.bit_count() == 1:
            print(
                f"farandole: rank {lifecycle.last_epoch_rank_and_size()[1]}: failure "
                f"{self._failures} since the last commit or step: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )

    def restore(self) -> None:
        self._state.restore()
        self.must_sync = True


_state_numbers = itertools.count(1)  # numbers the states with which this process has trained

# Held while a training runs. Another training, inside the first training or in another thread,
# could form the job again, and the first training would not notice.
_training_lock = threading.Lock()


def _acquire_training_lock() -> None:
    if not _training_lock.acquire(blocking=False):
        raise MisuseError(
            "another elastic training is running: a step, or a function of hvd.elastic.run, cannot "
            "contain another one, and only one thread can train"
        )


@contextlib.contextmanager
def _training_lock_held() -> Iterator[None]:
    _acquire_training_lock()
    try:
        yield
    finally:
        _training_lock.release()


def _check_rank_0_has_state(has_valid_state: bool) -> None:
    """Raise CallError on all ranks if the process that is rank 0 now had another rank at first, and
    has not received the state. A program may load a checkpoint on rank 0 only. So if the first rank
    0 is lost before it has sent its state, no other rank can replace the state."""
    problem = "" if has_valid_state else _RANK_0_WAS_LOST
    if gather_error_texts(problem, "elastic.rank_0", global_process_set):
        raise CallError(_RANK_0_WAS_LOST)


_RANK_0_WAS_LOST = (
    "rank 0 was lost before it had given its state to the other ranks; it may have loaded this "
    "state from a checkpoint, so no other rank can begin the training: start the job again"
)


def _check_same_on_all_ranks(training: str) -> None:
    """Raise CallError on all ranks if the ranks would sync different states. For example, a new
    worker begins with the first training of the program, while other ranks run the second one."""
    if texts := texts_if_different(training, "elastic.training", global_process_set):
        raise CallError(
            f"the ranks are in different trainings:\n{table(texts)}\n"
            "An elastic program must train with one state, in one function of hvd.elastic.run or "
            "with one Step"
        )


def _is_elastic() -> bool:
    return lifecycle.is_initialized() and lifecycle.engine().epoch > 0


class _Announcements(NamedTuple):
    """What the launcher has announced to an elastic job. All ranks have the same values."""

    change: bool = False  # the launcher wants to change the members
    end: bool = False  # the launcher is lost


def _agree_on_announcements() -> _Announcements:
    if not _is_elastic():
        return _Announcements()
    # The ranks learn of a change and of the end at different times, so they agree by an allreduce.
    # Only rank 0 asks the launcher about changes.
    change = lifecycle.rank() == 0 and lifecycle.engine().is_change_announced()
    own_flags = [change, lifecycle.announced_end() != ""]
    return _Announcements(
        *map(bool, allreduce_max(own_flags, "elastic.change", global_process_set))
    )


# How long a rank waits for the news that the launcher has ended. Calls to the launcher may fail
# before this news arrives.
END_NOTICE_SECONDS_MAX = 1.0


def _exit_if_job_ends(limit: float) -> None:
    """Exit if the job must end. The group is lost, so the ranks cannot agree on a last step."""
    if lifecycle.is_elastic() and (reason := lifecycle.announced_end(limit)):
        _exit_with_message(
            1,
            f"{reason}; other ranks are lost, too, so this rank ends without its end callbacks: "
            "continue from what was saved before",
        )


def _exit_with_message(code: int, reason: str) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # the program may have closed its output
        print(f"farandole: {reason}; exit code {code}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def reset_job() -> None:
    """Leave the job, and join it again with all other ranks that call reset_job(). In an elastic
    job, these are the remaining ranks and the new workers that wait to join. The process sets that
    were given to init() are registered again."""
    lifecycle.rejoin()
