"""Groups: sets of ranks that work together. ProcessSet is another name for Group."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

from farandole.errors import CallError

Value = TypeVar("Value")


class Period(NamedTuple):
    """The time during which the members of a group use the same agreement on the buckets of their
    optimizers. In the next period, the members agree again, because some of them may not have taken
    part in the last agreement: members that are new after the job was formed again, and members
    that called join() before the others."""

    registration: object  # a new object each time that the group is registered
    joins: int  # how often all members have called join() since the registration


class Group:
    """A set of ranks of the job. Pass the group to `init(process_sets=[...])` or
    `add_process_set()` on every rank, then use it in calls.

    While the group is not registered, `process_set_id`, size(), rank(), included() and, for the
    world, `ranks` are None. `mpi_comm` exists as in Horovod, but is always None, because there is
    no MPI.

    In an elastic job, groups that were given to init() are registered again whenever the job is
    formed again. While the job has too few ranks for a group, calls in this group raise a CallError
    that names the missing ranks. Groups of add_process_set() are not registered again.
    """

    mpi_comm: None = None
    period: Period | None = None  # None before the group is first registered

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        try:
            self.ranks: list[int] = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise CallError(
                "a ProcessSet needs a list of ranks of the world (whole numbers), not an MPI "
                f"communicator; got {ranks_or_comm!r}"
            ) from None
        if not self.ranks or len(set(self.ranks)) != len(self.ranks):
            raise CallError(
                f"a ProcessSet needs one rank or more, each once; got {list(ranks_or_comm)}"
            )
        self.process_set_id: int | None = None
        self._world_rank = -1
        self.was_added = False  # True from add_process_set() until remove_process_set()

    def register(self, number: int, ranks: list[int], world_rank: int) -> None:
        """Set the number and ranks. Called by init() and add_process_set()."""
        self.process_set_id, self.ranks, self._world_rank = number, ranks, world_rank
        self.was_added = False
        self._begin_period(Period(object(), 0))

    def begin_period_after_join(self) -> None:
        """Begin a new period. Called at the end of a join(), which all members have called."""
        if self.period is not None:
            self._begin_period(self.period._replace(joins=self.period.joins + 1))

    def _begin_period(self, period: Period) -> None:
        self.period = period
        self._optimizer_numbers = itertools.count()

    def register_as(self, registered_group: Group) -> None:
        """Make this object stand for the same group as `registered_group`. Called by init()."""
        self.__dict__.update(registered_group.__dict__)

    def __deepcopy__(self, memo: object) -> Group:
        """Return this object itself, because a copy of a model uses the same group as the model."""
        return self

    def __reduce__(self) -> Any:
        """Pickle only the ranks. Unpickling returns the receiver's own group of these ranks, or a
        new group that is not registered."""
        return group_for_ranks, (type(self), self.ranks)

    def unregister(self) -> None:
        """Mark the group as not registered. Called by shutdown() and remove_process_set()."""
        self.process_set_id = None

    def number(self) -> int:
        """Return process_set_id; raise CallError if the group is not registered."""
        if self.process_set_id is None and self.was_added:
            raise CallError(
                f"{self!r} is lost, because this process has left the job in which it was added: "
                "call add_process_set() again on all ranks. In an elastic job, call it at the "
                "beginning of the function, or give the process set to init(process_sets=[...])"
            )
        if self.process_set_id is None:
            raise CallError(
                f"{self!r} is not registered: on all ranks, pass it to init(process_sets=[...]) or "
                "add_process_set() before you use it, and remove it only afterwards"
            )
        return self.process_set_id

    # `ranks` and the methods below may return None, although their types omit None: only a group
    # that is not registered returns None, and every call rejects such a group.

    def included(self) -> bool:
        """Return whether this process is a member. None while the group is not registered."""
        return self._none_unless_registered(self._world_rank in self._members())

    def size(self) -> int:
        """Return the number of members. None while the group is not registered."""
        return self._none_unless_registered(len(self._members()))

    def rank(self) -> int:
        """Return the index of this process among the members. None while the group is not
        registered.

        Raises:
            CallError: This process is not a member. CallError is also a ValueError.
        """
        if self.included() is False:
            raise CallError(
                f"rank {self._world_rank} is not a member of {self!r}; only members may use it"
            )
        return self._none_unless_registered(bisect.bisect_left(self._members(), self._world_rank))

    def next_optimizer_number(self) -> int:
        """Return the next number for an optimizer. Each member numbers its optimizers in the order
        of their first use, from 0 in each period. See OptimizerName."""
        return next(self._optimizer_numbers)

    def _members(self) -> list[int]:
        return self.ranks or []

    def _none_unless_registered(self, value: Value) -> Value:
        return cast(Value, None) if self.process_set_id is None else value

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class OptimizerName:
    """The prefix of the names of an optimizer's calls. It is the same on all members, and differs
    from the prefix of every other optimizer of the group.

    An optimizer gets a prefix at its first use, and a new one at its first use in each later period
    of the group. So after a job was formed again, the optimizer of a surviving member has the same
    prefix as the optimizer that a new member has just made. After a join(), an optimizer has the
    same prefix on all members even if some members had not used it before. Members must use their
    optimizers in the same order; farandole.training.pairing checks the order by comparing the
    parameters of the optimizers.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._period: Period | None = None
        self._text = ""

    def __str__(self) -> str:
        if self._period != self._group.period:
            self._period = self._group.period
            self._text = f"gradients.{self._group.next_optimizer_number()}"
        return self._text


class _World(Group):
    def __init__(self) -> None:
        self.ranks = cast(list[int], None)
        self.process_set_id = None
        self._world_rank = -1

    def __reduce__(self) -> Any:
        return "global_process_set"  # unpickling returns the world of the receiving process

    def unregister(self) -> None:
        self.process_set_id, self.ranks = None, cast(list[int], None)


def group_for_ranks(group_type: type[Group], ranks: list[int]) -> Group:
    """Return this process's group of these ranks, or a new one. Do not rename this function:
    pickles of groups contain its name."""
    from farandole import lifecycle  # noqa: PLC0415, it imports this module

    return lifecycle.known_group(ranks) or group_type(ranks)


def checked_group(process_set: Group) -> Group:
    if not isinstance(process_set, Group):
        raise CallError(f"process_set must be a ProcessSet; got {process_set!r}")
    return process_set


ProcessSet = Group
global_process_set: Group = _World()
