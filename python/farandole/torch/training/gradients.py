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
gradient that some rank did not have gets its place in step(). The bucket of this gradient is
*late*: all ranks combine this bucket in step().
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
from farandole.torch.training.backward_end import BackwardEndNotifier
from farandole.torch.training.buckets import (
    Bucket,
    Gradient,
    ReductionSettings,
    SparseBucket,
    changed_error,
)
from farandole.training.bucket_layout import (
    CHANGED,
    DENSE,
    NO_GRADIENT,
    SPARSE,
    AgreedGradient,
    agree_on_gradients,
)
from farandole.training.bucket_plan import plan_buckets, plan_groups
from farandole.training.collected_errors import CollectedErrors
from farandole.training.pairing import in_common_order

_QUICK_CHECK_ELEMENTS = 1 << 12


class Gradients:
    """The gradients of one optimizer. Use it only from the thread that calls backward().

    A parameter belongs to the optimizer that was made last. An older optimizer may still exist, for
    example in the traceback of an error that the program keeps. The older optimizer must not
    combine the gradients a second time.

    In an elastic job, this rank may become a member of the group later, or may have left it. As
    long as it is not a member, it trains alone.
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
        self._group_numbers = (
            None
            if groups is None
            else {id(parameter): i for i, group in enumerate(groups) for parameter in group}
        )
        self._buckets: list[Bucket | SparseBucket] = []
        # The buckets of the last period. New buckets may take their memory.
        self._former_buckets: list[Bucket] = []
        self._last_bucket: Bucket | SparseBucket | None = None  # the last bucket that is not late
        self._all_gradients: list[Gradient] = []
        self._parameter_ids: set[int] = set()  # the ids of the parameters of all gradients
        self._unplaced_gradients: list[Gradient] = []  # the gradients without a place
        # The complete gradients without a place, in the order of their completion.
        self._completed_gradients: list[Gradient] = []
        self._complete_count = 0  # complete gradients in this step
        self._has_counted_pass = False  # whether a pass has been counted in this step
        self._last_pass_succeeded = False  # whether the last counted pass has ended well
        self._has_extra_pass = False  # whether one pass too many has added to combined gradients
        self._counts_passes = True  # False within no_sync()
        self._hooks: list[RemovableHandle] = []
        self._period = settings.group.period  # the period in which places were given
        self._membership_period: object = None  # the period in which _is_member was set
        self._is_member = False
        self._has_first_agreement = False  # whether the first agreement of this step has been made
        self._backward_end_notifier = BackwardEndNotifier(self)
        # Whether reduce() was called, and no gradient has been computed since.
        self.reduced = False
        # Whether the program has skipped the step for the gradients that were combined last.
        self._step_dropped = False
        self._is_retired = False
        weakref.finalize(self, _remove_hooks, self._hooks)

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        """Combine the gradients of these parameters, too. Add a parameter only once, even if it
        occurs twice: torch only warns about this."""
        for parameter in parameters:
            check(parameter)
        if self.is_member():
            self._take_ownership(parameters)
        new_parameters = {id(p): p for p in parameters if id(p) not in self._parameter_ids}
        self._parameter_ids.update(new_parameters)
        new_gradients = [
            Gradient(p, self._passes, self._names.get(parameter_id, ""))
            for parameter_id, p in new_parameters.items()
        ]
        self._all_gradients += new_gradients
        self._unplaced_gradients += new_gradients
        for gradient in new_gradients:
            self._add_hook(gradient)

    @outside_dynamo
    def check_all_parameters_added(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raise MisuseError if the optimizer has a gradient of a parameter that was not added here,
        because the ranks do not combine such a gradient."""
        added_ids = self._parameter_ids
        not_added = [p for group in groups for p in group["params"] if id(p) not in added_ids]
        with_gradient = [p for p in not_added if p.requires_grad and p.grad is not None]
        if with_gradient:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in with_gradient[:5])
            raise MisuseError(
                f"the optimizer has {len(with_gradient)} parameters, of shape {shapes}, that the "
                "program has put into param_groups itself, so their gradients are not combined: "
                "add them by optimizer.add_param_group(), or make a new DistributedOptimizer"
            )

    def is_member(self) -> bool:
        """Return whether this rank combines the gradients. A rank outside of the group does not."""
        group = self._settings.group
        if group.period is not self._membership_period:
            self._membership_period = group.period
            # If the group is not registered any more, included() is None. Then this rank counts as
            # a member, and its calls raise an error that says so.
            self._is_member = group.included() is not False
            if self._is_member:
                self._take_ownership([gradient.parameter for gradient in self._all_gradients])
        return self._is_member

    def _take_ownership(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            former_owner = self._owners.get(id(parameter))
            if former_owner is not None and former_owner is not self and former_owner.is_member():
                former_owner._retire()
            self._owners[id(parameter)] = self

    def _retire(self) -> None:
        self._is_retired = True
        _remove_hooks(self._hooks)

    def _add_hook(self, gradient: Gradient) -> None:
        """Add the hook, also to a frozen parameter: the program may unfreeze it at any time before
        backward(). torch accepts a hook only for a trained parameter, but then keeps the hook."""
        parameter, was_trained = gradient.parameter, gradient.parameter.requires_grad
        with contextlib.suppress(RuntimeError):  # integer parameters, for example, cannot train
            parameter.requires_grad = True
        if parameter.requires_grad:
            hook = _make_hook(weakref.ref(self), gradient)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))
            parameter.requires_grad = was_trained

    def on_gradient_ready(self, gradient: Gradient) -> None:
        gradient.holds_combined_value = False
        if not self.is_member():
            return
        if self.reduced:
            self.reduced, self._step_dropped = False, True
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
            self._step_dropped = True
            self._reset()
        if self._complete_count == 0:
            self._forget_former_places()
        bucket = gradient.bucket
        if bucket is None:
            gradient.save_version()
        if not self._counts_passes:
            return
        self._has_counted_pass, self._last_pass_succeeded = True, False
        self._backward_end_notifier.request_callback()
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return
        self._complete_count += 1
        if bucket is None:
            self._completed_gradients.append(gradient)
            return
        bucket.move_if_large(gradient)
        if bucket.count_complete_gradient() and not bucket.is_late:
            self._start_full_bucket(bucket)

    def _was_step_skipped(self, gradient: Gradient) -> bool:
        """Return whether the program has skipped the step and dropped the combined gradients
        without telling the optimizer, as by model.zero_grad()."""
        if self.is_in_flight():
            return False
        if gradient.bucket is None or not gradient.has_result():
            return True
        other_gradients = [
            g for g in self._all_gradients if g is not gradient and g.parameter.grad is not None
        ]
        return bool(other_gradients) and not any(
            _has_nonzero(other.parameter.grad) for other in other_gradients
        )

    def are_all_dropped(self) -> bool:
        """Return whether the program has dropped all gradients, and none is in flight."""
        # Look at a few elements first: they usually show that the program has kept the gradients.
        if any(
            _has_nonzero(gradient.parameter.grad, _QUICK_CHECK_ELEMENTS)
            for gradient in self._existing_gradients()
        ):
            return False
        if any(
            g.is_unchanged_since_combined() or _has_nonzero(g.parameter.grad)
            for g in self._existing_gradients()
        ):
            return False
        return not self.is_in_flight()

    def needs_reduce(self) -> bool:
        """Return whether reduce() must still combine gradients of this step."""
        return not self.reduced or self.are_all_dropped()

    def _existing_gradients(self) -> Iterator[Gradient]:
        for gradient in self._all_gradients:
            if gradient.parameter.requires_grad and gradient.parameter.grad is not None:
                yield gradient

    def _start_full_bucket(self, bucket: Bucket | SparseBucket) -> None:
        """Start a bucket in which all gradients are complete. The last bucket is an exception: its
        gradients are only moved into it here. The end of the pass starts this bucket and waits for
        it, so that no other thread must be woken."""
        try:
            if bucket is self._last_bucket:
                bucket.fill()
            else:
                bucket.start(self._settings, self._step_dropped)
        except Exception:
            bucket.reset(self._passes)
            raise

    def on_backward_end(self) -> None:
        """Wait for all full buckets."""
        if not self._counts_passes or self._is_retired:
            return
        if not self._has_counted_pass:  # the program has called step() within backward()
            return
        errors = CollectedErrors()
        last_bucket = self._last_bucket
        if last_bucket is not None and last_bucket.is_full() and last_bucket.finish is None:
            errors.attempt(
                functools.partial(last_bucket.start, self._settings, self._step_dropped, True)
            )
        if self._completed_gradients and not self._has_first_agreement:
            errors.attempt(self._place_common_gradients)
        for bucket in self._buckets:
            errors.attempt(bucket.wait)
        if errors.found:
            self._step_dropped = True  # other ranks, without an error, make this step
            self._reset()
            raise errors.pop_first()
        self._last_pass_succeeded = True
        if self._has_gradients_for_step():
            for bucket in self._buckets:
                bucket.save_state()

    def _has_gradients_for_step(self) -> bool:
        """Return whether there are gradients that only step() combines."""
        return any(gradient.must_be_sent() for gradient in self._unplaced_gradients) or any(
            bucket.must_start() for bucket in self._buckets
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which backward passes only add to this rank's gradients."""
        counted_before, self._counts_passes = self._counts_passes, False
        try:
            yield
        finally:
            self._counts_passes = counted_before

    @outside_dynamo
    def reduce(self, was_unscaled: bool = False) -> None:
        """Combine the remaining gradients, in the same order on all ranks. `was_unscaled` says
        whether a GradScaler has unscaled the gradients of this rank."""
        if self._is_retired:
            raise MisuseError(
                "a DistributedOptimizer that was made later has parameters of this one, and "
                "combines their gradients: use that one, or make a new one for these parameters"
            )
        errors = CollectedErrors()
        if (self.reduced or self._complete_count > 0) and self.are_all_dropped():
            # If a rank has begun another backward pass, it has set this mark in
            # on_gradient_ready().
            self._step_dropped = True
            self._reset()
        self._forget_former_places()
        remaining_buckets = [bucket for bucket in self._buckets if bucket.must_start()]
        was_changed = self._has_gradients_for_step() and any(
            bucket.was_changed() for bucket in self._buckets
        )
        for bucket in remaining_buckets:
            blocking = bucket is remaining_buckets[-1] and not self._unplaced_gradients
            # Other ranks may have started this bucket in backward(). The mark tells these ranks
            # about changes on this rank before the bucket's call ends.
            has_changed_mark = (was_changed or was_unscaled) and not bucket.is_late
            start = functools.partial(
                bucket.start, self._settings, self._step_dropped, blocking, has_changed_mark
            )
            errors.attempt(start)
        # If the first agreement fails, it fails on all ranks: on some of them in backward(), on the
        # other ranks here.
        has_agreed = self._has_first_agreement or errors.attempt(self._place_common_gradients)
        old_bucket_count = len(self._buckets)
        if has_agreed:
            errors.attempt(self._place_remaining_gradients)
        for bucket in self._buckets:
            errors.attempt(bucket.wait)
        if self._has_extra_pass:
            errors.found.append(changed_error(""))
        combined_in_reduce = [bucket for bucket in remaining_buckets if bucket.is_late]
        combined_in_reduce += self._buckets[old_bucket_count:]
        marked_buckets = [bucket for bucket in remaining_buckets if not bucket.is_late]
        errors.attempt(
            functools.partial(self._check_changes, was_changed, marked_buckets, combined_in_reduce)
        )
        self._reset()
        if errors.found:
            self._step_dropped = True  # see on_backward_end()
            raise errors.pop_first()
        self._former_buckets.clear()
        self.reduced = True

    def _check_changes(
        self,
        was_changed: bool,
        marked_buckets: Sequence[Bucket | SparseBucket],
        combined_in_reduce: Sequence[Bucket | SparseBucket],
    ) -> None:
        """Raise an error if a program has changed gradients before these buckets were combined.
        `was_changed` says whether the program of this rank has changed gradients. All ranks combine
        the buckets `combined_in_reduce` in reduce(), so here they tell each other whether gradients
        were changed, and all ranks raise the error. For the other buckets, the marks have told all
        ranks before."""
        was_changed_anywhere = was_changed
        if combined_in_reduce:
            name = f"{self._name}.changed"
            was_changed_anywhere = bool(allreduce_max([was_changed], name, self._settings.group)[0])
        buckets_to_check = [
            *(marked_buckets if was_changed else ()),
            *(combined_in_reduce if was_changed_anywhere else ()),
        ]
        for bucket in buckets_to_check:
            if bucket.has_nonzero():
                raise changed_error(bucket.name)

    @outside_dynamo
    def skip_reduce(self) -> bool:
        """Prepare a step without reduce(). Return whether the gradients are combined."""
        if self._has_extra_pass or self.is_in_flight():
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
        self.reduced = self._step_dropped = False

    def on_failed_step(self, are_combined: bool) -> None:
        """Record that the step has failed on this rank. Other ranks may have made the step, so this
        rank sets the mark for dropped gradients when it combines gradients the next time. If the
        gradients are combined, the program may repeat the step with them."""
        self.reduced, self._step_dropped = are_combined, True

    def _forget_former_places(self) -> None:
        """In a new period, forget all places, because another rank may have no places. Gradients
        that get the same places again keep their memory."""
        group, former_period = self._settings.group, self._period
        if group.process_set_id is None or group.period == former_period:
            return
        assert group.period and former_period
        if self._complete_count > 0 and group.period.registration is former_period.registration:
            # If this step forgot the places, it would combine gradients again that are already
            # combined. So the next step forgets the places.
            return
        self._period = group.period
        # Some ranks may be new in this period. They cannot know whether other ranks dropped
        # gradients in the former period, so no rank sets the mark for dropped gradients.
        self._step_dropped = False
        self._former_buckets += [bucket for bucket in self._buckets if isinstance(bucket, Bucket)]
        self._buckets.clear()
        self._last_bucket = None
        for gradient in self._all_gradients:
            gradient.remove_place()
        self._unplaced_gradients = list(self._all_gradients)
        self._reset()

    def _place_common_gradients(self) -> None:
        """Give places to the gradients that all ranks have. This is the first of two agreements in
        a step. It runs at the end of the first backward pass that completes a gradient without a
        place. If there is no such pass, it runs in step()."""
        self._has_first_agreement = True
        unplaced = self._unplaced_in_common_order("pairing")
        if not unplaced:
            return
        kinds = [
            _kind_of(g.parameter.grad) if g.passes_left == 0 else NO_GRADIENT for g in unplaced
        ]
        agreed = self._agree("layout", unplaced, kinds)
        self._give_places(agreed, [g for g in unplaced if agreed[g].is_on_all_ranks], is_late=False)

    def _place_remaining_gradients(self) -> None:
        """Give places to the gradients that some rank has. This is the second agreement, in
        step()."""
        unplaced = self._unplaced_in_common_order("pairing.rest")
        if not unplaced:
            return
        kinds = [
            CHANGED if g.passes_left == 0 and not g.is_unchanged() else _kind_of(g.parameter.grad)
            for g in unplaced
        ]
        agreed = self._agree("layout.rest", unplaced, kinds)
        changed_gradients = [gradient for gradient in unplaced if agreed[gradient].kind == CHANGED]
        if changed_gradients:
            raise changed_error(self._shown_names(changed_gradients[:1]))
        for gradient in unplaced:
            if agreed[gradient].kind != NO_GRADIENT:
                continue
            if gradient.was_unused:  # give it a place, so that later steps need no agreement
                agreed[gradient] = agreed[gradient]._replace(kind=DENSE)
            else:
                gradient.was_unused = True
                gradient.parameter.grad = torch.zeros_like(gradient.parameter).detach()
        existing_gradients = [
            gradient for gradient in unplaced if agreed[gradient].kind != NO_GRADIENT
        ]
        self._give_places(
            agreed, [g for g in existing_gradients if agreed[g].is_on_all_ranks], is_late=False
        )
        self._give_places(
            agreed, [g for g in existing_gradients if not agreed[g].is_on_all_ranks], is_late=True
        )

    def _unplaced_in_common_order(self, call_suffix: str) -> list[Gradient]:
        """Return the gradients that must be sent and have no place, in the same order on all
        ranks."""
        gradients_by_id = {id(g.parameter): g for g in self._unplaced_gradients if g.must_be_sent()}
        if not gradients_by_id:
            return []
        parameters = [gradient.parameter for gradient in gradients_by_id.values()]
        group = self._settings.group
        name = f"{self._name}.{call_suffix}"
        ordered = in_common_order(
            torch_tensors, parameters, self._names, name, group, self._pairing_details
        )
        return [gradients_by_id[id(parameter)] for parameter in ordered]

    def _pairing_details(self, parameter: torch.Tensor) -> str:
        text = ""
        if self._group_numbers is not None:
            number = self._group_numbers.get(id(parameter))
            text = ", in no group" if number is None else f", in group {number}"
        # The ranks combine the memory of the bucket, in which gradients have these strides.
        strides = torch_tensors.permuted_strides(parameter)
        return text if strides is None else f"{text}, strides {strides}"

    def _agree(
        self, call_suffix: str, gradients: Sequence[Gradient], kinds: Sequence[int]
    ) -> dict[Gradient, AgreedGradient]:
        """Return the agreement of the ranks on each gradient. `kinds` has this rank's kinds."""
        index_of = {gradient: index for index, gradient in enumerate(gradients)}
        completed = [
            index_of[gradient] for gradient in self._completed_gradients if gradient in index_of
        ]
        agreed = agree_on_gradients(
            kinds, completed, f"{self._name}.{call_suffix}", self._settings.group
        )
        return dict(zip(gradients, agreed, strict=True))

    def _give_places(
        self,
        agreed: Mapping[Gradient, AgreedGradient],
        gradients: Sequence[Gradient],
        is_late: bool,
    ) -> None:
        """Put the gradients into new buckets, and start the buckets."""
        ordered = sorted(gradients, key=lambda gradient: agreed[gradient].place)
        old_bucket_count = len(self._buckets)
        sparse_as_dense = self._settings.sparse_as_dense
        for gradient in ordered:
            gradient.becomes_sparse = sparse_as_dense and agreed[gradient].kind == SPARSE
        self._add_dense_buckets([g for g in ordered if sparse_as_dense or agreed[g].kind == DENSE])
        for gradient in ordered:
            if not sparse_as_dense and agreed[gradient].kind == SPARSE:
                self._buckets.append(SparseBucket(self._next_name([gradient]), gradient))
        self._unplaced_gradients = [g for g in self._unplaced_gradients if g.bucket is None]
        for bucket in self._buckets[old_bucket_count:]:
            bucket.is_late = is_late
            self._last_bucket = self._last_bucket if is_late else bucket
            bucket.start(self._settings, self._step_dropped)

    def _add_dense_buckets(self, gradients: Sequence[Gradient]) -> None:
        parameters = [gradient.parameter for gradient in gradients]
        dtypes_and_sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
        if not self._settings.can_combine_whole_buckets():
            plan = plan_buckets(dtypes_and_sizes, 0)
        elif self._group_numbers is None:
            bucket_bytes = int(lifecycle.engine().settings["FARANDOLE_BUCKET_BYTES"])
            plan = plan_buckets(dtypes_and_sizes, bucket_bytes)
        else:
            plan = plan_groups(
                dtypes_and_sizes, [self._group_numbers.get(id(p)) for p in parameters]
            )
        for planned in plan:
            bucket_gradients = [gradients[index] for index, _ in planned.places]
            name = self._next_name(bucket_gradients)
            self._buckets.append(Bucket(name, bucket_gradients, planned, self._former_buckets))

    def _next_name(self, gradients: Sequence[Gradient]) -> str:
        """Return the name of the next bucket for reports and errors, the same on all ranks."""
        name = f"{self._name}.{len(self._buckets)}"
        text = self._shown_names(gradients)
        return f"{name} ({text})" if text else name

    def _shown_names(self, gradients: Sequence[Gradient]) -> str:
        first_name = self._names.get(id(gradients[0].parameter), "")
        other_count = len(gradients) - 1
        return f"{first_name} and {other_count} more" if first_name and other_count else first_name

    def is_in_flight(self) -> bool:
        """Return whether this step must be finished, because other ranks may wait for its
        buckets."""
        if self._complete_count == 0:
            return False
        if any(
            bucket.is_trained() and bucket.finish is None and not bucket.is_late
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
        if not self.reduced and not (self._complete_count > 0 and self._last_pass_succeeded):
            self.restart_step(passes)
            return
        self._passes = passes or self._passes
        if self._complete_count == 0:
            self._reset()

    @outside_dynamo
    def restart_step(self, passes: int | None = None) -> None:
        """Forget the passes that were counted, because the program has dropped their gradients.
        First wait for the buckets that are still in flight after an error in backward(), because
        other ranks write to them."""
        for bucket in self._buckets:
            with contextlib.suppress(FarandoleError):
                bucket.wait()
        self._passes = passes or self._passes
        self._step_dropped = self._step_dropped or self.reduced or self._complete_count > 0
        self.reduced = False
        self._reset()

    def _reset(self) -> None:
        self._complete_count = 0
        self._has_first_agreement = self._has_extra_pass = False
        self._has_counted_pass = self._last_pass_succeeded = False
        self._completed_gradients.clear()
        for bucket in self._buckets:
            bucket.reset(self._passes)
        for gradient in self._unplaced_gradients:
            gradient.passes_left = self._passes
            gradient.last_version = None


def _make_hook(
    gradients_ref: weakref.ref[Gradients], gradient: Gradient
) -> Callable[[torch.Tensor], None]:
    """Make a hook that does not keep the optimizer alive, because a model may outlive it."""

    @outside_dynamo
    def hook(_: torch.Tensor) -> None:
        gradients = gradients_ref()
        if gradients is not None:
            gradients.on_gradient_ready(gradient)

    return hook


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _kind_of(gradient: torch.Tensor | None) -> int:
    if gradient is None:
        return NO_GRADIENT
    return SPARSE if gradient.is_sparse else DENSE


def _has_nonzero(gradient: torch.Tensor | None, elements: int | None = None) -> bool:
    """Return whether any of the first `elements` elements is not zero. None means all elements."""
    if gradient is None:
        return False
    values = gradient._values() if gradient.is_sparse else gradient.detach()
    return bool((values if elements is None else values.reshape(-1)[:elements]).any())
