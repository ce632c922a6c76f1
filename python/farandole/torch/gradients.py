"""All gradients of an optimizer: combined over the ranks while backward is still running.

Autograd's hook says when a gradient is complete; with the last one of a bucket the allreduce of the
whole bucket starts. The first step only watches: in the order in which gradients became complete on
member 0 they get their places, the same on all ranks. So buckets become full one after another, and
what is sparse on any rank is known to all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from farandole import lifecycle
from farandole.bucket_plan import plan_buckets
from farandole.errors import CallError, FarandoleError
from farandole.reduce_op import Max
from farandole.torch.buckets import Bucket, Combination, Gradient, SparseBucket, changed
from farandole.torch.operations import allreduce_
from farandole.torch.pairing import paired
from farandole.torch.tensors import check

# What a rank has for a parameter; of all ranks the largest counts.
_NOTHING, _DENSE, _SPARSE = range(3)

_NO_GROUP = sys.maxsize  # after all others


class MisuseError(CallError, AssertionError):
    """A call at the wrong time. Also an AssertionError, for programs that Horovod has told so."""


class Gradients:
    """Use from one thread, the one that calls backward."""

    def __init__(
        self,
        name: str,
        combination: Combination,
        passes: int,
        groups: Sequence[Sequence[torch.Tensor]] | None,
        names: Mapping[int, str],
    ) -> None:
        """`groups`: the parameters that share a bucket, and the others are alone; None: buckets
        are filled up to their size. `names`: those of the parameters that have one, by id()."""
        self._name, self._combination, self._names = name, combination, names
        self._passes = passes
        self._group_of = (
            None
            if groups is None
            else {id(parameter): i for i, group in enumerate(groups) for parameter in group}
        )
        self._buckets: list[Bucket | SparseBucket] = []
        self._all: list[Gradient] = []
        self._unplaced: list[Gradient] = []
        self._arrived: list[Gradient] = []  # of these, in the order of their completion
        self._complete = 0  # gradients in this step
        self._counting = True
        self._hooks: list[RemovableHandle] = []
        self._engine = lifecycle.engine()  # that of the places
        # Nothing was computed since the last reduce().
        self.reduced = False
        weakref.finalize(self, _remove_hooks, self._hooks)

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            check(parameter)
        added = [Gradient(parameter, self._passes) for parameter in parameters]
        self._all += added
        self._unplaced += added
        self._watch()

    def _watch(self) -> None:
        """Hooks the trained parameters; frozen ones cannot have a hook yet."""
        for gradient in self._unplaced:
            if gradient.hook is None and gradient.parameter.requires_grad:
                hook = _hook(weakref.ref(self), gradient)
                gradient.hook = gradient.parameter.register_post_accumulate_grad_hook(hook)
                self._hooks.append(gradient.hook)

    def gradient_is_ready(self, gradient: Gradient) -> None:
        self.reduced = False
        if self._complete == 0:
            self._follow()
        bucket = gradient.bucket
        if self._counting and gradient.passes_left == 0:
            raise MisuseError(
                f"a gradient was computed more than {self._passes} times before step(): for "
                "several backward passes in one step give backward_passes_per_step"
            )
        if bucket is None:
            gradient.note()
        if not self._counting:
            return
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return
        self._complete += 1
        if bucket is None:
            self._arrived.append(gradient)
            return
        bucket.take(gradient)
        if bucket.complete_one():
            self._depart(bucket)

    def _depart(self, bucket: Bucket | SparseBucket) -> None:
        """Starts a full bucket, but for the last: step() starts that, and need not wake a thread
        for it."""
        try:
            if bucket is self._buckets[-1]:
                bucket.fill()
            else:
                bucket.start(self._combination)
        except Exception:
            bucket.reset(self._passes)
            raise

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes within it only add up."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def reduce(self) -> None:
        """Starts what has not started, in the same order on all ranks, and waits for all."""
        errors: list[Exception] = []

        def attempt(action: Callable[[], Any]) -> None:
            try:
                action()
            except Exception as problem:
                errors.append(problem)

        self._follow()
        waiting = [b for b in self._buckets if b.finish is None and b.active()]
        for bucket in waiting:
            waits = bucket is waiting[-1] and not self._unplaced
            attempt(functools.partial(bucket.start, self._combination, waits))
        attempt(self._place)
        for bucket in self._buckets:
            attempt(bucket.wait)
        self._reset()
        if errors:
            raise errors[0]
        self._watch()
        self.reduced = True

    def _follow(self) -> None:
        """Begins anew in a job that was formed anew: its peers do not see the memory of the old
        places, and a rank that had failed may have none."""
        if not lifecycle.is_initialized() or lifecycle.engine() is self._engine:
            return
        self._engine = lifecycle.engine()
        self._buckets.clear()
        for gradient in self._all:
            gradient.leave()
        self._unplaced = list(self._all)
        self._reset()

    def _place(self) -> None:
        """Gives places to the gradients that some rank has had now for the first time."""
        by_parameter = {id(g.parameter): g for g in self._unplaced if g.parameter.requires_grad}
        if not by_parameter:
            return
        parameters = [gradient.parameter for gradient in by_parameter.values()]
        group = self._combination.group
        name = f"{self._name}.pairing"
        ordered = paired(parameters, self._names, name, group, self._group_of)
        trained = [by_parameter[id(parameter)] for parameter in ordered]
        touched = [g for g in trained if g.passes_left == 0 and not g.untouched()]
        kinds, order = self._agree(trained)
        for index, gradient in enumerate(trained):
            if kinds[index] == _NOTHING and gradient.unused:
                kinds[index] = _DENSE  # or the ranks would ask each other in each step for ever
            elif kinds[index] == _NOTHING:
                gradient.unused = True
                gradient.parameter.grad = torch.zeros_like(gradient.parameter).detach()
        ranked = sorted(range(len(trained)), key=lambda i: (order[i], -i))
        dense = [trained[i] for i in ranked if kinds[i] == _DENSE]
        sparse = [trained[i] for i in ranked if kinds[i] == _SPARSE]
        first = len(self._buckets)
        for portion, limit in self._portions(dense):
            self._fill_buckets(portion, limit)
        for gradient in sparse:
            self._buckets.append(SparseBucket(self._name_next([gradient]), gradient))
        self._unplaced = [g for g in self._unplaced if g.bucket is None]
        for bucket in self._buckets[first:]:
            bucket.start(self._combination)
        if touched:
            raise changed()

    def _agree(self, trained: Sequence[Gradient]) -> tuple[list[int], list[int]]:
        """Of each gradient: what some rank has, and its place in member 0's order."""
        count = len(trained)
        kinds = [self._kind(gradient.parameter.grad) for gradient in trained]
        order = [-1] * count
        if self._combination.group.rank() == 0:
            places = {id(gradient): place for place, gradient in enumerate(self._arrived)}
            order = [places.get(id(gradient), count) for gradient in trained]
        said = allreduce_(
            torch.tensor([*kinds, *order]),
            name=f"{self._name}.layout",
            op=Max,
            process_set=self._combination.group,
        ).tolist()
        return said[:count], said[count:]

    def _kind(self, gradient: torch.Tensor | None) -> int:
        if gradient is None:
            return _NOTHING
        sparse = gradient.is_sparse and not self._combination.sparse_as_dense
        return _SPARSE if sparse else _DENSE

    def _portions(self, gradients: Sequence[Gradient]) -> list[tuple[list[Gradient], int | None]]:
        """What is put into buckets separately, with the limit of bytes of such a bucket."""
        if not self._combination.takes_whole_buckets():
            return [(list(gradients), 0)]
        if self._group_of is None:
            return [(list(gradients), lifecycle.engine().bucket_bytes)]
        numbers = self._group_of

        def number_of(gradient: Gradient) -> int:
            return numbers.get(id(gradient.parameter), _NO_GROUP)

        portions = itertools.groupby(sorted(gradients, key=number_of), number_of)
        return [(list(portion), 0 if number == _NO_GROUP else None) for number, portion in portions]

    def _fill_buckets(self, gradients: Sequence[Gradient], limit: int | None) -> None:
        parameters = [gradient.parameter for gradient in gradients]
        sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
        for planned in plan_buckets(sizes, limit):
            chosen = [gradients[index] for index, _ in planned.places]
            self._buckets.append(Bucket(self._name_next(chosen), chosen, planned))

    def _name_next(self, gradients: Sequence[Gradient]) -> str:
        """What reports and errors call the next bucket, the same on all ranks."""
        name = f"{self._name}.{len(self._buckets)}"
        first = self._names.get(id(gradients[0].parameter))
        if first is None:
            return name
        others = len(gradients) - 1
        return f"{name} ({first})" if others == 0 else f"{name} ({first} and {others} more)"

    def in_flight(self) -> bool:
        return self._complete > 0

    def restart(self, passes: int | None = None) -> None:
        """Forgets passes that were counted, as their gradients are gone. Waits for the buckets that
        have started, since the ranks write to them."""
        for bucket in self._buckets:
            with contextlib.suppress(FarandoleError):
                bucket.wait()
        self._passes = passes or self._passes
        self.reduced = False
        self._reset()

    def _reset(self) -> None:
        self._complete = 0
        self._arrived.clear()
        for bucket in self._buckets:
            bucket.reset(self._passes)
        for gradient in self._unplaced:
            gradient.passes_left = self._passes
            gradient.seen = None


def _hook(owner: weakref.ref[Gradients], gradient: Gradient) -> Callable[[torch.Tensor], None]:
    """The parameter must not keep the optimizer alive: a model may get another one."""

    def hook(_: torch.Tensor) -> None:
        gradients = owner()
        if gradients is not None:
            gradients.gradient_is_ready(gradient)

    return hook


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
