"""All gradients of an optimizer. The ranks combine them while backward() runs, and at the end of
backward().

Autograd calls a hook when a gradient is complete. When the last gradient of a bucket is complete,
the allreduce of the whole bucket starts. The end of the backward pass waits for all buckets that
have started, so the program only sees gradients that are the same on all ranks. step() combines the
remaining buckets, in which at least one gradient is not complete on this rank. Each bucket is
combined once in a step, so the ranks always combine buckets of the same step.

At the end of the first backward pass, gradients get places in buckets, the same places on all
ranks. Their places follow the order in which they became complete on member 0, so buckets become
full one after another. All ranks then also know which gradients are sparse on at least one rank. A
gradient that some rank did not have gets its place in step(), and its bucket is *late*: all ranks
combine it in step().
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from farandole import lifecycle
from farandole.comparison import allreduce_max
from farandole.errors import FarandoleError, MisuseError
from farandole.group import OptimizerName
from farandole.torch import tensors as torch_tensors
from farandole.torch.dynamo import outside_dynamo
from farandole.torch.tensors import check
from farandole.torch.training.backward_end import BackwardEnd
from farandole.torch.training.buckets import (
    Bucket,
    Gradient,
    ReductionSettings,
    SparseBucket,
    changed_error,
)
from farandole.training.bucket_layout import CHANGED, DENSE, NOTHING, SPARSE, AgreedGradient, agree
from farandole.training.bucket_plan import plan_buckets, plan_groups
from farandole.training.collected_errors import CollectedErrors
from farandole.training.pairing import paired

_FEW_ELEMENTS = 1 << 12


class Gradients:
    """The gradients of one optimizer. Use it only from the thread that calls backward().

    A parameter belongs to the optimizer that was made last. An older optimizer may still exist, for
    example in the traceback of an error that the program keeps. The older optimizer must not
    combine the gradients a second time.

    In an elastic job, this rank may become a member of the group later, or may have left it.
    Meanwhile, it trains alone.
    """

    _owners: ClassVar[weakref.WeakValueDictionary[int, Gradients]] = weakref.WeakValueDictionary()

    def __init__(
        self,
        name: OptimizerName,
        settings: ReductionSettings,
        passes: int,
        groups: Sequence[Sequence[torch.Tensor]] | None,
        names: Mapping[int, str],
    ) -> None:
        """Start with no parameters; add() adds them.

        Args:
            name: The name of the optimizer.
            settings: How gradients are combined.
            passes: The number of backward passes per step.
            groups: Lists of parameters that share a bucket; every other parameter has its own
                bucket. With None, buckets are filled up to their largest size.
            names: The names of the named parameters, by id().
        """
        self._name, self._settings, self._names = name, settings, names
        self._passes = passes
        self._group_of = (
            None
            if groups is None
            else {id(parameter): i for i, group in enumerate(groups) for parameter in group}
        )
        self._buckets: list[Bucket | SparseBucket] = []
        # The buckets of the last period, whose memory new buckets may take.
        self._former_buckets: list[Bucket] = []
        self._last_bucket: Bucket | SparseBucket | None = None  # the last bucket that is not late
        self._all_gradients: list[Gradient] = []
        self._known: set[int] = set()  # the ids of the parameters of all gradients
        self._unplaced: list[Gradient] = []
        self._completed: list[Gradient] = []  # of _unplaced, in the order of their completion
        self._complete_count = 0  # complete gradients in this step
        self._has_passes = False  # whether a pass has been counted in this step
        self._pass_ended = False  # whether the last of these passes has ended without an error
        self._has_extra_pass = False  # whether a pass too many has added to combined gradients
        self._counts_passes = True  # False within no_sync()
        self._hooks: list[RemovableHandle] = []
        self._period = settings.group.period  # the period in which places were given
        self._membership_period: object = None  # the period in which _is_member was found
        self._is_member = False
        self._has_agreed = False  # whether the first agreement of this step has been made
        self._backward_end = BackwardEnd(self)
        # Whether reduce() was called, and no gradient has been computed since.
        self.reduced = False
        # Whether the program has not made the step for the gradients that were combined last.
        self._dropped = False
        self._retired = False
        weakref.finalize(self, _remove_hooks, self._hooks)

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        """Combine the gradients of these parameters, too. Add a parameter only once, even if it
        occurs twice: torch only warns about this."""
        for parameter in parameters:
            check(parameter)
        if self.is_member():
            self._own(parameters)
        new = {id(p): p for p in parameters if id(p) not in self._known}
        self._known.update(new)
        added = [
            Gradient(p, self._passes, self._names.get(number, "")) for number, p in new.items()
        ]
        self._all_gradients += added
        self._unplaced += added
        for gradient in added:
            self._add_hook(gradient)

    @outside_dynamo
    def check_all_known(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Check that the optimizer has no gradient of a parameter that was not added here: the
        ranks do not combine it."""
        known = self._known
        unknown = [p for group in groups for p in group["params"] if id(p) not in known]
        used = [p for p in unknown if p.requires_grad and p.grad is not None]
        if used:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in used[:5])
            raise MisuseError(
                f"the optimizer has {len(used)} parameters, of shape {shapes}, that the program "
                "has put into param_groups itself, so their gradients are not combined: add them "
                "by optimizer.add_param_group(), or make a new DistributedOptimizer"
            )

    def is_member(self) -> bool:
        """Return whether this rank combines the gradients. A rank outside of the group does not."""
        group = self._settings.group
        if group.period is not self._membership_period:
            self._membership_period = group.period
            # If the group is not registered any more, calls raise an error that says so.
            self._is_member = group.included() is not False
            if self._is_member:
                self._own([gradient.parameter for gradient in self._all_gradients])
        return self._is_member

    def _own(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            former = self._owners.get(id(parameter))
            if former is not None and former is not self and former.is_member():
                former._retire()
            self._owners[id(parameter)] = self

    def _retire(self) -> None:
        self._retired = True
        _remove_hooks(self._hooks)

    def _add_hook(self, gradient: Gradient) -> None:
        """Add the hook, also to a frozen parameter: the program may unfreeze it at any time before
        backward(). torch accepts a hook only for a trained parameter, but then keeps the hook."""
        parameter, was_trained = gradient.parameter, gradient.parameter.requires_grad
        with contextlib.suppress(RuntimeError):  # parameters of integers, for example, never train
            parameter.requires_grad = True
        if parameter.requires_grad:
            hook = _make_hook(weakref.ref(self), gradient)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))
            parameter.requires_grad = was_trained

    def on_gradient_ready(self, gradient: Gradient) -> None:
        gradient.settled = False
        if not self.is_member():
            return
        if self.reduced:
            self.reduced, self._dropped = False, True
        if gradient.passes_left == 0:
            if not self._was_step_skipped(gradient):
                self._has_extra_pass = True
                raise MisuseError(
                    f"a gradient was computed more than {self._passes} times before step(). For "
                    "several backward passes in one step, give backward_passes_per_step, or run "
                    "all but the last within `with optimizer.no_sync():`. If a pass only goes "
                    "through this model to train another one, as in a GAN, run it within "
                    "no_sync() of this optimizer, or call model.requires_grad_(False) before it. "
                    "To skip a step when some rank lacks gradients, call synchronize() first"
                )
            self._dropped = True
            self._reset()
        if self._complete_count == 0:
            self._forget_former_places()
        bucket = gradient.bucket
        if bucket is None:
            gradient.save_version()
        if not self._counts_passes:
            return
        self._has_passes, self._pass_ended = True, False
        self._backward_end.request_callback()
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return
        self._complete_count += 1
        if bucket is None:
            self._completed.append(gradient)
            return
        bucket.move_if_large(gradient)
        if bucket.complete_one() and not bucket.late:
            self._start_full(bucket)

    def _was_step_skipped(self, gradient: Gradient) -> bool:
        """Return whether the program has skipped the step and dropped the combined gradients
        without telling the optimizer, as by model.zero_grad()."""
        if self.in_flight():
            return False
        if gradient.bucket is None or not gradient.has_result():
            return True
        others = [
            g for g in self._all_gradients if g is not gradient and g.parameter.grad is not None
        ]
        return bool(others) and not any(_has_nonzero(other.parameter.grad) for other in others)

    def are_dropped(self) -> bool:
        """Return whether the program has dropped all gradients, and none is in flight."""
        # Usually a few elements of the first gradient show that the program has kept it.
        if any(_has_nonzero(gradient.parameter.grad, _FEW_ELEMENTS) for gradient in self._kept()):
            return False
        if any(
            g.is_unchanged_since_combined() or _has_nonzero(g.parameter.grad) for g in self._kept()
        ):
            return False
        return not self.in_flight()

    def needs_reduce(self) -> bool:
        """Return whether reduce() must still combine gradients of this step."""
        return not self.reduced or self.are_dropped()

    def _kept(self) -> Iterator[Gradient]:
        for gradient in self._all_gradients:
            if gradient.parameter.requires_grad and gradient.parameter.grad is not None:
                yield gradient

    def _start_full(self, bucket: Bucket | SparseBucket) -> None:
        """Start a bucket whose gradients are all complete. The last bucket is an exception: its
        gradients are only moved into it here. The end of the pass starts this bucket and waits for
        it, so that no other thread must be woken."""
        try:
            if bucket is self._last_bucket:
                bucket.fill()
            else:
                bucket.start(self._settings, self._dropped)
        except Exception:
            bucket.reset(self._passes)
            raise

    def on_backward_end(self) -> None:
        """Wait for all full buckets."""
        if not self._counts_passes or self._retired:
            return
        if not self._has_passes:  # the program has called step() within backward()
            return
        errors = CollectedErrors()
        last = self._last_bucket
        if last is not None and last.is_full() and last.finish is None:
            errors.attempt(functools.partial(last.start, self._settings, self._dropped, True))
        if self._completed and not self._has_agreed:
            errors.attempt(self._place_common)
        for bucket in self._buckets:
            errors.attempt(bucket.wait)
        if errors.found:
            self._dropped = True  # other ranks may have no error, and make the step
            self._reset()
            raise errors.pop_first()
        self._pass_ended = True
        if self._needs_step():
            for bucket in self._buckets:
                bucket.save_state()

    def _needs_step(self) -> bool:
        """Return whether there are gradients that only step() combines."""
        return any(gradient.must_be_sent() for gradient in self._unplaced) or any(
            bucket.must_start() for bucket in self._buckets
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which backward passes only add to this rank's gradients."""
        before, self._counts_passes = self._counts_passes, False
        try:
            yield
        finally:
            self._counts_passes = before

    @outside_dynamo
    def reduce(self, unscaled: bool = False) -> None:
        """Combine the remaining gradients, in the same order on all ranks. `unscaled` says whether
        a GradScaler has unscaled the gradients of this rank."""
        if self._retired:
            raise MisuseError(
                "a DistributedOptimizer that was made later has parameters of this one, and "
                "combines their gradients: use that one, or make a new one for these parameters"
            )
        errors = CollectedErrors()
        if (self.reduced or self._complete_count > 0) and self.are_dropped():
            self._dropped = True  # ranks that have begun another backward pass did this then
            self._reset()
        self._forget_former_places()
        remaining = [bucket for bucket in self._buckets if bucket.must_start()]
        changed = self._needs_step() and any(b.was_changed() for b in self._buckets)
        for bucket in remaining:
            waits = bucket is remaining[-1] and not self._unplaced
            # Ranks that have started this bucket in backward() must learn of changes on this rank
            # before the bucket's call ends.
            mark_changed = (changed or unscaled) and not bucket.late
            start = functools.partial(
                bucket.start, self._settings, self._dropped, waits, mark_changed
            )
            errors.attempt(start)
        # If the first agreement fails, it fails on all ranks: on some of them in backward(), on the
        # others here.
        placed = self._has_agreed or errors.attempt(self._place_common)
        first_new = len(self._buckets)
        if placed:
            errors.attempt(self._place_rest)
        for bucket in self._buckets:
            errors.attempt(bucket.wait)
        if self._has_extra_pass:
            errors.found.append(changed_error(""))
        combined_here = [b for b in remaining if b.late] + self._buckets[first_new:]
        others = [bucket for bucket in remaining if not bucket.late]
        errors.attempt(functools.partial(self._check_changes, changed, others, combined_here))
        self._reset()
        if errors.found:
            self._dropped = True  # as in on_backward_end()
            raise errors.pop_first()
        self._former_buckets.clear()
        self.reduced = True

    def _check_changes(
        self,
        changed: bool,
        others: Sequence[Bucket | SparseBucket],
        combined_here: Sequence[Bucket | SparseBucket],
    ) -> None:
        """Raise an error if a program has changed gradients before these buckets were combined.
        `changed` says whether the program of this rank has changed gradients. All ranks combine the
        buckets `combined_here` in reduce(), so all ranks raise the error. The marks of the other
        buckets have already told all ranks whether gradients were changed."""
        changed_somewhere = changed
        if combined_here:
            name = f"{self._name}.changed"
            changed_somewhere = bool(allreduce_max([changed], name, self._settings.group)[0])
        suspects = [*(others if changed else ()), *(combined_here if changed_somewhere else ())]
        for bucket in suspects:
            if bucket.has_nonzero():
                raise changed_error(bucket.name)

    @outside_dynamo
    def skip_reduce(self) -> bool:
        """Prepare a step without reduce(). Return whether the gradients are combined."""
        if self._has_extra_pass or self.in_flight():
            raise MisuseError(
                "step() was called within skip_synchronize() while gradients are in flight: call "
                "synchronize() before"
            )
        are_combined = self.reduced or self._complete_count > 0
        self._reset()
        self.on_step()
        return are_combined

    def on_step(self) -> None:
        """Record that the program makes the step for the combined gradients."""
        self.reduced = self._dropped = False

    def on_failed_step(self, are_combined: bool) -> None:
        """Record that the step has failed on this rank. Other ranks may have made it, so this rank
        sets the mark for dropped gradients in its next combination. If the gradients are combined,
        the program may repeat the step with them."""
        self.reduced, self._dropped = are_combined, True

    def _forget_former_places(self) -> None:
        """In a new period, forget all places, because another rank may have none. Gradients that
        get the same places again keep their memory."""
        group, former = self._settings.group, self._period
        if group.process_set_id is None or group.period == former:
            return
        assert group.period and former
        if self._complete_count > 0 and group.period.registration is former.registration:
            # If the places were forgotten now, gradients that are already combined would be
            # combined again. The next step forgets the places instead.
            return
        self._period = group.period
        # Some ranks may be new in this period. They cannot know whether the others have dropped
        # gradients in the former period, so no rank sets the mark for that.
        self._dropped = False
        self._former_buckets += [bucket for bucket in self._buckets if isinstance(bucket, Bucket)]
        self._buckets.clear()
        self._last_bucket = None
        for gradient in self._all_gradients:
            gradient.remove_place()
        self._unplaced = list(self._all_gradients)
        self._reset()

    def _place_common(self) -> None:
        """Give places to the gradients that all ranks have. This is the first of two agreements in
        a step. It runs at the end of the first backward pass in which a gradient without a place is
        complete, or else in step()."""
        self._has_agreed = True
        trained = self._paired("pairing")
        if not trained:
            return
        kinds = [_kind(g.parameter.grad) if g.passes_left == 0 else NOTHING for g in trained]
        agreed = self._agree("layout", trained, kinds)
        self._give_places(agreed, [g for g in trained if agreed[g].on_all_ranks], late=False)

    def _place_rest(self) -> None:
        """Give places to the gradients that some rank has. This is the second agreement, in
        step()."""
        trained = self._paired("pairing.rest")
        if not trained:
            return
        kinds = [
            CHANGED if g.passes_left == 0 and not g.is_unchanged() else _kind(g.parameter.grad)
            for g in trained
        ]
        agreed = self._agree("layout.rest", trained, kinds)
        written = [gradient for gradient in trained if agreed[gradient].kind == CHANGED]
        if written:
            raise changed_error(self._text_of(written[:1]))
        for gradient in trained:
            if agreed[gradient].kind != NOTHING:
                continue
            if gradient.was_unused:  # without a place, it would need an agreement in every step
                agreed[gradient] = agreed[gradient]._replace(kind=DENSE)
            else:
                gradient.was_unused = True
                gradient.parameter.grad = torch.zeros_like(gradient.parameter).detach()
        chosen = [gradient for gradient in trained if agreed[gradient].kind != NOTHING]
        self._give_places(agreed, [g for g in chosen if agreed[g].on_all_ranks], late=False)
        self._give_places(agreed, [g for g in chosen if not agreed[g].on_all_ranks], late=True)

    def _paired(self, call_suffix: str) -> list[Gradient]:
        """Return the gradients that must be sent and have no place, in the same order on all
        ranks."""
        by_parameter = {id(g.parameter): g for g in self._unplaced if g.must_be_sent()}
        if not by_parameter:
            return []
        parameters = [gradient.parameter for gradient in by_parameter.values()]
        group = self._settings.group
        name = f"{self._name}.{call_suffix}"
        ordered = paired(torch_tensors, parameters, self._names, name, group, self._pairing_details)
        return [by_parameter[id(parameter)] for parameter in ordered]

    def _pairing_details(self, parameter: torch.Tensor) -> str:
        text = ""
        if self._group_of is not None:
            number = self._group_of.get(id(parameter))
            text = ", in no group" if number is None else f", in group {number}"
        # The ranks combine the memory of the bucket, in which gradients have these strides.
        strides = torch_tensors.permuted_strides(parameter)
        return text if strides is None else f"{text}, strides {strides}"

    def _agree(
        self, call_suffix: str, trained: Sequence[Gradient], kinds: Sequence[int]
    ) -> dict[Gradient, AgreedGradient]:
        """Return the agreement of the ranks on each gradient. `kinds` has this rank's kinds."""
        index_of = {gradient: index for index, gradient in enumerate(trained)}
        completed = [index_of[gradient] for gradient in self._completed if gradient in index_of]
        agreed = agree(kinds, completed, f"{self._name}.{call_suffix}", self._settings.group)
        return dict(zip(trained, agreed, strict=True))

    def _give_places(
        self, agreed: Mapping[Gradient, AgreedGradient], chosen: Sequence[Gradient], late: bool
    ) -> None:
        """Put the chosen gradients into new buckets, and start the buckets."""
        ordered = sorted(chosen, key=lambda gradient: agreed[gradient].place)
        first_new = len(self._buckets)
        as_dense = self._settings.sparse_as_dense
        for gradient in ordered:
            gradient.becomes_sparse = as_dense and agreed[gradient].kind == SPARSE
        self._add_dense_buckets([g for g in ordered if as_dense or agreed[g].kind == DENSE])
        for gradient in ordered:
            if not as_dense and agreed[gradient].kind == SPARSE:
                self._buckets.append(SparseBucket(self._next_name([gradient]), gradient))
        self._unplaced = [g for g in self._unplaced if g.bucket is None]
        for bucket in self._buckets[first_new:]:
            bucket.late = late
            self._last_bucket = self._last_bucket if late else bucket
            bucket.start(self._settings, self._dropped)

    def _add_dense_buckets(self, gradients: Sequence[Gradient]) -> None:
        parameters = [gradient.parameter for gradient in gradients]
        dtypes_and_sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
        if not self._settings.can_combine_whole_buckets():
            plan = plan_buckets(dtypes_and_sizes, 0)
        elif self._group_of is None:
            bucket_bytes = int(lifecycle.engine().settings["FARANDOLE_BUCKET_BYTES"])
            plan = plan_buckets(dtypes_and_sizes, bucket_bytes)
        else:
            plan = plan_groups(dtypes_and_sizes, [self._group_of.get(id(p)) for p in parameters])
        for planned in plan:
            chosen = [gradients[index] for index, _ in planned.places]
            name = self._next_name(chosen)
            self._buckets.append(Bucket(name, chosen, planned, self._former_buckets))

    def _next_name(self, gradients: Sequence[Gradient]) -> str:
        """Return the name of the next bucket for reports and errors, the same on all ranks."""
        name = f"{self._name}.{len(self._buckets)}"
        text = self._text_of(gradients)
        return f"{name} ({text})" if text else name

    def _text_of(self, gradients: Sequence[Gradient]) -> str:
        first = self._names.get(id(gradients[0].parameter), "")
        others = len(gradients) - 1
        return f"{first} and {others} more" if first and others else first

    def in_flight(self) -> bool:
        """Return whether this step must be finished, because other ranks may wait for its
        buckets."""
        if self._complete_count == 0:
            return False
        if any(
            bucket.is_trained() and bucket.finish is None and not bucket.late
            for bucket in self._buckets
        ):
            return True
        return bool(self.parameters_in_flight())

    def is_between_passes(self) -> bool:
        """Return whether some, but not all backward passes of a step have added to gradients."""
        return any(
            0 < gradient.passes_left < self._passes and gradient.parameter.grad is not None
            for gradient in self._all_gradients
        )

    def parameters_in_flight(self) -> list[torch.Tensor]:
        """Return the parameters with a complete gradient that is not combined."""
        return [
            gradient.parameter
            for gradient in self._all_gradients
            if gradient.passes_left == 0 and not gradient.is_combined()
        ]

    @outside_dynamo
    def forget_passes(self, passes: int | None = None) -> None:
        """Forget the passes that were counted, unless backward() has combined their gradients:
        step() must not combine those a second time. `passes` is a new number of passes per step."""
        if not self.reduced and not (self._complete_count > 0 and self._pass_ended):
            self.restart(passes)
            return
        self._passes = passes or self._passes
        if self._complete_count == 0:
            self._reset()

    @outside_dynamo
    def restart(self, passes: int | None = None) -> None:
        """Forget the passes that were counted, because the program has dropped their gradients.
        First wait for the buckets that are still in flight after an error in backward(), because
        other ranks write to them."""
        for bucket in self._buckets:
            with contextlib.suppress(FarandoleError):
                bucket.wait()
        self._passes = passes or self._passes
        self._dropped = self._dropped or self.reduced or self._complete_count > 0
        self.reduced = False
        self._reset()

    def _reset(self) -> None:
        self._complete_count = 0
        self._has_agreed = self._has_extra_pass = False
        self._has_passes = self._pass_ended = False
        self._completed.clear()
        for bucket in self._buckets:
            bucket.reset(self._passes)
        for gradient in self._unplaced:
            gradient.passes_left = self._passes
            gradient.last_version = None


def _make_hook(owner: weakref.ref[Gradients], gradient: Gradient) -> Callable[[torch.Tensor], None]:
    """Make a hook that does not keep the optimizer alive, because a model may outlive it."""

    @outside_dynamo
    def hook(_: torch.Tensor) -> None:
        gradients = owner()
        if gradients is not None:
            gradients.on_gradient_ready(gradient)

    return hook


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _kind(gradient: torch.Tensor | None) -> int:
    if gradient is None:
        return NOTHING
    return SPARSE if gradient.is_sparse else DENSE


def _has_nonzero(gradient: torch.Tensor | None, elements: int | None = None) -> bool:
    """Return whether any of the first `elements` elements is not zero. None means all elements."""
    if gradient is None:
        return False
    values = gradient._values() if gradient.is_sparse else gradient.detach()
    return bool((values if elements is None else values.reshape(-1)[:elements]).any())
