"""Join and leave the job. This module holds the engine and the context of this process."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from farandole import core
from farandole.errors import CallError, GroupLostError, MisuseError
from farandole.group import Group, checked_group, global_process_set


class _Process:
    """The state of this process: outside a job, or a member with an engine."""

    engine: core.Engine | None = None
    context = core.ProcessContext()  # shared by all its engines
    # Every object that stands for a registered group, the world first.
    groups: tuple[Group, ...] = ()
    # Groups that torch.distributed uses until the job ends: see lasting_group_of().
    lasting_groups: tuple[Group, ...] = ()
    # For each group that was given to the last init(), the objects that stand for this group. They
    # are kept after the job has ended, so that the next job can register them again.
    given_groups: tuple[tuple[Group, ...], ...] = ()
    is_joining = False  # True while init() runs
    last_epoch_rank_and_size = (0, -1, 0)  # see last_epoch_rank_and_size()
    # The number of jobs that this process has joined. It makes the rendezvous id of each job
    # different, because other launchers (mpirun, torchrun) provide the same variables for all jobs
    # of a process.
    rendezvous_count = 0
    # The engines of start_engine_of_some_ranks(), in addition to the engine of the whole job.
    engines_of_some_ranks: tuple[core.Engine, ...] = ()
    # Engines whose shutdown() is running. If the process forks during shutdown(), the child also
    # abandons these engines.
    leaving_engines: tuple[core.Engine, ...] = ()
    is_child_of_member = False  # whether this is a forked child of a member
    is_child = False  # whether this is a forked child of any process
    has_state = False  # see set_has_state()
    # Functions that wait for calls in a framework's own threads. See wait_for_frameworks().
    framework_waits: tuple[Callable[[], object], ...] = ()
    preparations: tuple[Callable[[], object], ...] = ()  # see add_preparation()


_process = _Process()


def set_has_state() -> None:
    """Record that this process has the state of the training. From now on, the launcher of an
    elastic job gives rank 0 only to a process that has the state."""
    _process.has_state = True
    _process.context.set_has_state()


def has_state() -> bool:
    """Return whether set_has_state() was called in this process."""
    return _process.has_state


def check_has_state(function_name: str) -> None:
    """In an elastic job, raise MisuseError if this process has not received the state of the
    training. All ranks must call the function of this name together. A worker that joins later
    would wait in the function, while the other ranks wait until this worker syncs the state."""
    if is_elastic() and not _process.has_state:
        raise MisuseError(
            f"{function_name} was called before this process got the state of the training: in an "
            "elastic job, call it at the beginning of the function of hvd.elastic.run, or after "
            "Step.ready(), so that all ranks call it whenever the job is formed again"
        )


def announced_end(limit: float = 0) -> str:
    """Return why an elastic job must end with the next commit, or "" if it need not end. Wait up to
    `limit` seconds for such an announcement."""
    return _process.context.announced_end(limit)


def add_preparation(prepare: Callable[[], object]) -> None:
    """Register a function to call before this process joins an elastic job for the first time, so
    that the other ranks need not wait for this function."""
    _process.preparations += (prepare,)


def add_framework_wait(wait: Callable[[], object]) -> None:
    """Let wait_for_frameworks() call this function, too."""
    _process.framework_waits += (wait,)


def wait_for_frameworks() -> None:
    """Wait for the calls that compiled programs make in a framework's own threads. Call this before
    an action such as adding a group or leaving the job: on all ranks, these calls must come before
    the action."""
    if not _process.is_child_of_member:
        for wait in _process.framework_waits:
            wait()


def init(
    comm: Any = None, process_sets: Sequence[Group] | Literal["dynamic"] | None = None
) -> None:
    """Join the job and wait for the other ranks.

    Without a launcher, the job is this process alone. A second call does nothing. But if this rank
    has noticed that the job is lost (by a GroupLostError, for example), a second call leaves the
    lost job and joins again.

    Args:
        comm: None, a list of all ranks, an empty list, or mpi4py's COMM_WORLD. All of these mean
            the whole job. Scripts that were written for Horovod pass this argument. A job of only
            some ranks cannot be formed.
        process_sets: Groups to register, the same on every rank; each gets its `process_set_id`.
            "dynamic", which Horovod needs for add_process_set(), means the same as None. In an
            elastic job, None means the groups that were given to the last init() of this process.
            A group of an elastic job may contain ranks that the job does not have. The group can be
            used when the job has these ranks.

    Raises:
        CallError: `comm` is not all ranks, or `process_sets` is wrong. CallError is also a
            ValueError.
        GroupLostError: A rank did not join in time, or has ended. In an elastic job, init() waits
            without a limit until the launcher forms the group. If a rank is lost during this time,
            init() waits again.

    Example::

        hvd.init()
        print(f"rank {hvd.rank()} of {hvd.size()}")
    """
    _check_not_forked()
    are_groups_given = process_sets is not None and process_sets != "dynamic"
    groups = _checked_groups(process_sets if are_groups_given else [])
    if _process.engine is not None and _process.engine.is_over:
        shutdown()
    if _process.engine is not None:
        _check_comm_is_world(comm, _process.engine.size)
        _register_again(groups)
    elif are_groups_given or not is_elastic():
        _join(tuple((group,) for group in groups), comm=comm)
    else:
        _join(_process.given_groups, comm=comm)


def rejoin() -> None:
    """Leave the job, and join it again with all other ranks that call rejoin() or init(). The
    process sets that were given to init() are registered again."""
    shutdown()
    _check_not_forked()
    _join(_process.given_groups)


def init_with_rendezvous_id(rendezvous_id: str, rank: int, size: int, on_one_host: bool) -> None:
    """Join a job. All ranks of the job pass this `rendezvous_id`, and no other job uses it. If the
    ranks are not `on_one_host`, they find each other at FARANDOLE_JOB_STORE."""
    _check_not_forked()
    _join((), rendezvous_id, (rank, size), on_one_host=on_one_host)


def start_engine_of_some_ranks(
    rendezvous_id: str, rank: int, size: int, on_one_host: bool
) -> core.Engine:
    """Make and return an engine that connects only some ranks of the job. The new engine is
    independent of the engine of the whole job. Each of these ranks, and no other rank, must call
    this function, all with the same `rendezvous_id`. Each new engine needs a new id. If not
    `on_one_host`, these ranks find each other in the Store of the whole job. The launcher of
    `farandole run` does not see the calls of this engine. end_engine_of_some_ranks() ends it."""
    _check_not_forked()
    _process.is_joining = True
    try:
        engine = core.Engine(
            context=_process.context,
            groups=[],
            rendezvous_id=rendezvous_id,
            topology=(rank, size),
            is_subset_of_job=True,
            on_one_host=on_one_host,
        )
    finally:
        _process.is_joining = False
    _process.engines_of_some_ranks += (engine,)
    return engine


def end_engine_of_some_ranks(
    engine: core.Engine,
    reason: str = "it called shutdown()",
    cause: core.LeaveCause = core.LeaveCause.ORDERLY,
) -> None:
    """End an engine that start_engine_of_some_ranks() has made. A second call does nothing."""
    if engine not in _process.engines_of_some_ranks or _process.is_child_of_member:
        return
    _process.leaving_engines += (engine,)
    others = tuple(other for other in _process.engines_of_some_ranks if other is not engine)
    _process.engines_of_some_ranks = others
    try:
        engine.shutdown(reason, cause, "")
    finally:
        _process.leaving_engines = tuple(e for e in _process.leaving_engines if e is not engine)


def _check_not_forked() -> None:
    if _process.is_child_of_member:
        raise CallError("init() was called in a forked child of a member; start a new process")


def is_elastic() -> bool:
    """Return whether the job is elastic: the launcher forms the group, and its size may change."""
    return int(os.environ.get("FARANDOLE_ELASTIC_WORKER") or -1) >= 0


def _join(
    groups: tuple[tuple[Group, ...], ...],
    rendezvous_id: str = "",
    topology: Sequence[int] = (),
    comm: Any = None,
    on_one_host: bool = False,
) -> None:
    if is_elastic() and _process.rendezvous_count == 0:
        for prepare in _process.preparations:
            prepare()
    _process.is_joining = True
    try:
        engine = core.Engine(
            context=_process.context,
            groups=[group.ranks or [] for group, *_ in groups],
            rendezvous_id=rendezvous_id or f"\ninit={_process.rendezvous_count}",
            topology=topology,
            is_subset_of_job=False,
            on_one_host=on_one_host,
        )
    finally:
        _process.is_joining = False
        _process.rendezvous_count += 1
    try:
        _check_comm_is_world(comm, engine.size)
    except CallError as error:
        engine.shutdown(str(error), core.LeaveCause.ORDERLY, "")
        raise
    for number, (group, *others) in enumerate([(global_process_set,), *groups]):
        group.register(number, engine.ranks_of(number), engine.rank)
        for other in others:
            other.register_as(group)
    _process.engine, _process.given_groups = engine, groups
    _process.last_epoch_rank_and_size = (engine.epoch, engine.rank, engine.size)
    _process.groups = (global_process_set, *itertools.chain(*groups))


def _check_comm_is_world(comm: Any, size: int) -> None:
    """Check that `comm` is a list of all ranks, an empty list, or an MPI communicator of `size`
    processes."""
    if comm is None:
        return
    if isinstance(comm, (list, tuple)):
        if not comm or (len(comm) == size and all(rank in comm for rank in range(size))):
            return
    elif hasattr(comm, "Get_size") and comm.Get_size() == size:
        return
    raise CallError(
        f"init() joins the whole job, of size {size}, but comm is {comm!r}: leave it out, and give "
        "process_sets=[ProcessSet([...])] for calls among some ranks, or start a smaller job"
    )


def _checked_groups(groups: Any) -> Sequence[Group]:
    if isinstance(groups, (list, tuple)) and all(isinstance(group, Group) for group in groups):
        return groups
    raise CallError(
        f'process_sets must be a list of ProcessSet objects, or "dynamic"; got {groups!r}'
    )


def known_group(ranks: list[int]) -> Group | None:
    """Return this process's group of these ranks, preferably a registered one, or None. A group
    that was given to init() is found even while the job has too few ranks for it."""
    init_groups = itertools.chain.from_iterable(_process.given_groups if is_initialized() else ())
    known_groups = [group for group in (*_process.groups[1:], *init_groups) if group.ranks == ranks]
    registered_groups = [group for group in known_groups if group.process_set_id is not None]
    return next(iter(registered_groups + known_groups), None)


def _register_again(groups: Sequence[Group]) -> None:
    known_groups = {tuple(group.ranks or ()): group for group in reversed(_process.groups[1:])}
    for group in groups:
        registered_group = known_groups.get(tuple(group.ranks or ()))
        if registered_group is None:
            raise CallError(
                f"init() was called again with {group!r}, which is not registered: use "
                "add_process_set(), or call shutdown() in between"
            )
        if group.process_set_id is None:
            group.register_as(registered_group)
            _process.groups += (group,)
            _process.given_groups = tuple(
                (*objects, group) if registered_group in objects else objects
                for objects in _process.given_groups
            )


def add_process_set(process_set: Group | Sequence[int]) -> Group:
    """Add a group to the running job, and return its ProcessSet.

    All ranks of the world must call it with the same ranks, and must add and remove groups in the
    same order. The call waits for the other ranks. If the job is formed again, such as an elastic
    job after a failure, the group ends. Only groups that were given to init() are then registered
    again.

    Args:
        process_set: A ProcessSet, or a list of world ranks.

    Raises:
        CallError: The ranks are wrong, or the group exists already. CallError is also a ValueError.
        MisuseError: This process has not yet received the state of an elastic training.

    Example::

        first = hvd.add_process_set([0])
        if first.included():
            hvd.allreduce(torch.ones(1), process_set=first)
        hvd.remove_process_set(first)
    """
    current = engine()
    check_has_state("add_process_set()")
    group = process_set if isinstance(process_set, Group) else Group(process_set)
    ranks = group.ranks or []
    _check_same_request(f"adds {ranks}")
    lasting = _find_group(_process.lasting_groups, ranks)
    if lasting is None or _find_group(_process.groups, ranks) is not None:
        number = current.add_group(ranks)
    else:
        number = lasting.number()
    group.register(number, current.ranks_of(number), current.rank)
    group.was_added = True
    _process.groups += (group,)
    return group


def lasting_group_of(ranks: Sequence[int]) -> Group:
    """Return a group of these ranks for torch.distributed, which uses it until the job ends. All
    ranks of the world must call it, as with add_process_set(). The ranks must be ascending.

    The program may register a ProcessSet of the same ranks, before or after this call. Both then
    use the same group of the engine, and remove_process_set() only unregisters the ProcessSet.
    """
    lasting = _find_group(_process.lasting_groups, ranks)
    if lasting is None:
        current, group = engine(), _find_group(_process.groups, ranks)
        lasting = Group(ranks)
        number = current.add_group(lasting.ranks) if group is None else group.number()
        lasting.register(number, current.ranks_of(number), current.rank)
        _process.lasting_groups += (lasting,)
    return lasting


def group_of(ranks: Sequence[int]) -> Group | None:
    """Return the registered group of these ranks, or None. The ranks must be ascending."""
    return _find_group((*_process.groups, *_process.lasting_groups), ranks)


def _find_group(groups: Sequence[Group], ranks: Sequence[int]) -> Group | None:
    rank_list = list(ranks)
    return next((group for group in groups if group.ranks == rank_list), None)


def _check_same_request(request: str) -> None:
    """Wait until all ranks have called this function. Raise CallError on all ranks if their
    requests differ. The engine makes the same check when it adds or removes a group. But if
    torch.distributed also uses the group, the engine does not get the request."""
    if not _process.lasting_groups:  # then no rank has such a group
        return
    from farandole.comparison import table, texts_if_different  # noqa: PLC0415, a cycle

    if texts := texts_if_different(request, "process_sets.request", global_process_set):
        raise CallError(
            f"the ranks ask for different changes of process sets:\n{table(texts)}\n"
            "All ranks must add and remove the same process sets in the same order"
        )


def group_numbered(number: int) -> Group:
    """Return the registered group with this number."""
    for group in _process.groups:
        if group.process_set_id == number:
            return group
    engine()  # raises a CallError if this process is not in a job
    raise CallError(f"there is no process set with the number {number}")


def remove_process_set(process_set: Group) -> bool:
    """Remove a group from the running job.

    All ranks of the world must call it, as with add_process_set().

    Args:
        process_set: The ProcessSet. It can be registered again later. A ProcessSet that was given
            to init() is registered again when the job is formed again. If
            torch.distributed.new_group() has made a group of the same ranks, that group still
            works.

    Returns:
        False if it is the world or is not registered, otherwise True.
    """
    current = engine()
    number = checked_group(process_set).process_set_id
    if process_set is global_process_set or number is None:
        return False
    wait_for_frameworks()
    _check_same_request(f"removes {process_set.ranks}")
    if all(group.process_set_id != number for group in _process.lasting_groups):
        current.remove_group(number)
    removed_groups = [group for group in _process.groups if group.process_set_id == number]
    for group in removed_groups:
        group.unregister()
        group.was_added = False
    _process.groups = tuple(group for group in _process.groups if group not in removed_groups)
    return True


def shutdown() -> None:
    """Leave the job. Calls of other ranks that need this rank fail. init() may be called again."""
    try:
        wait_for_frameworks()
    finally:  # leave even if a program of a framework has failed
        _leave("it called shutdown()")


def _leave(reason: str, cause: core.LeaveCause = core.LeaveCause.ORDERLY, stack: str = "") -> None:
    engine, groups = _process.engine, _process.groups + _process.lasting_groups
    if engine is None or _process.is_child_of_member:
        return
    _process.leaving_engines += (engine,)
    _process.engine, _process.groups, _process.lasting_groups = None, (), ()
    for group in groups:
        group.unregister()
    try:
        engine.shutdown(reason, cause, stack)
    finally:
        _process.leaving_engines = tuple(e for e in _process.leaving_engines if e is not engine)


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of each registered group by its number. The world has the number 0."""
    current = engine()
    groups = _process.groups + _process.lasting_groups
    numbers = {group.process_set_id for group in groups}
    return {
        number: current.ranks_of(number) for number in sorted(n for n in numbers if n is not None)
    }


def engine() -> core.Engine:
    """Return the engine of this process; raise CallError outside a job."""
    if _process.engine is None:
        raise CallError("farandole is not initialized: call init() first")
    return _process.engine


def is_initialized() -> bool:
    """Return whether this process is in a job: after init() and before shutdown()."""
    return _process.engine is not None


def last_epoch_rank_and_size() -> tuple[int, int, int]:
    """Return the epoch, the rank and the size that this process had when it last joined a job. The
    epoch is 0 in a job that is not elastic. If the process has never joined a job, return
    (0, -1, 0)."""
    return _process.last_epoch_rank_and_size


def rank() -> int:
    """Return the number of this process in the job: 0 ... size() - 1."""
    return engine().rank


def size() -> int:
    """Return the number of processes of the job."""
    return engine().size


def local_rank() -> int:
    """Return the number of this process among the processes of the job on this host."""
    return engine().local_rank


def local_size() -> int:
    """Return the number of processes of the job on this host."""
    return engine().local_size


def cross_rank() -> int:
    """Return the number of this host among the hosts that have a process with this local_rank()."""
    return engine().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process with this local_rank()."""
    return engine().cross_size


def is_homogeneous() -> bool:
    """Return whether every host has the same number of processes."""
    return engine().is_homogeneous


def _leave_at_exit() -> None:
    try:
        if _leave_all() and not _process.is_child:
            _process.context.wait_for_other_ranks()
    finally:
        if not _process.is_child:
            _process.context.close()


def _leave_all() -> bool:
    """Leave the job, and tell all ranks why. Return whether the program ended without an error."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        try:
            wait_for_frameworks()
        except BaseException as failure:  # a program of a framework has failed
            error = failure
            traceback.print_exception(error)
    reason = "its program ended"
    if error is not None:
        reason = describe_safely(error, _summary) or "raised an exception that cannot be described"
    for engine in _process.engines_of_some_ranks:
        end_engine_of_some_ranks(engine, reason)
    if error is None:
        _leave(reason)
        return True
    cause = (
        core.LeaveCause.GROUP_LOST if _was_caused_by_lost_rank(error) else core.LeaveCause.EXCEPTION
    )
    details = describe_safely(error, lambda error: "".join(traceback.format_exception(error)))
    if _process.engine is None and not _process.is_child:
        core.report_end(reason, cause, details)  # outside a job, no engine reports the end
    _leave(reason, cause, details)
    return False


def _was_caused_by_lost_rank(error: BaseException | None) -> bool:
    """Return whether the error is a GroupLostError, or was raised `from` a GroupLostError.

    The programs of TensorFlow and of JAX raise errors of their own classes instead of our errors.
    The texts of these errors contain the names of our classes.
    """
    seen_ids: set[int] = set()  # the causes of an error may form a cycle
    while error is not None and id(error) not in seen_ids:
        if isinstance(error, GroupLostError) or f"{GroupLostError.__name__}: " in describe_safely(
            error, str
        ):
            return True
        seen_ids.add(id(error))
        error = error.__cause__
    return False


def _summary(error: BaseException) -> str:
    """Describe the exception that ends this process in one line, for the other ranks."""
    text = f"raised {type(error).__name__}"
    lines = describe_safely(error, str).splitlines()
    return f"{text}: {lines[0][:500]}" if lines else text


def describe_safely(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Describe an exception for the other ranks; return "" if its own methods fail."""
    try:
        return describe(error).encode(errors="backslashreplace").decode()
    except BaseException:  # even after Ctrl-C, this rank must still leave the job
        return ""


def _abandon_in_child() -> None:
    _process.is_child = True
    engines = _process.leaving_engines + _process.engines_of_some_ranks
    if _process.engine is not None:
        engines += (_process.engine,)
    for engine in engines:
        engine.abandon_after_fork()
    _process.is_child_of_member = (
        _process.is_child_of_member or _process.is_joining or bool(engines)
    )


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_abandon_in_child)
