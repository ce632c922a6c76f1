"""Buckets of gradients in shared memory, and sparse gradients, each of which is sent alone.

The memory of a parameter's gradient is part of its bucket, so gradients need not be copied into the
bucket: the ranks combine the bucket in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from farandole import lifecycle
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allreduce
from farandole.reduce_op import ReduceOp
from farandole.torch import tensors as torch_tensors
from farandole.torch.calls import start_in_place
from farandole.torch.compression import BF16Compressor, FP16Compressor, NoneCompressor
from farandole.torch.sparse import sparse_of, start_sparse
from farandole.training.bucket_plan import PlannedBucket

_LARGE_ELEMENTS_MIN = 1 << 15  # gradients of this size or more are moved when they are complete
_SAMPLE_ELEMENTS = 1 << 12  # about this many elements are in the sample of save_state()
# The values of Gradient.frozen_state(). The parameter is trained, or it is frozen. A frozen one has
# no gradient, a gradient that is not combined, or a combined gradient.
_TRAINED, _NO_GRADIENT, _UNCOMBINED, _COMBINED = _FROZEN_STATES = range(4)


@dataclass(frozen=True)
class ReductionSettings:
    """How gradients are combined. The settings are the same on all members of the group."""

    group: Group
    op: ReduceOp
    compression: Any  # a Compressor
    # Gradients are divided by this factor before the sum, and the sum is multiplied by it.
    predivide_factor: float
    sparse_as_dense: bool

    def can_combine_whole_buckets(self) -> bool:
        """Return whether a bucket can be sent as one tensor. A program's own compressor may treat
        each tensor differently, so it gets the gradients one by one."""
        return self.compression in (NoneCompressor, FP16Compressor, BF16Compressor)

    def start(
        self, tensor: torch.Tensor, name: str, blocking: bool, marks: Marks
    ) -> Callable[[], object]:
        """Start to combine a tensor in place, and return a function that waits for it."""
        call = Allreduce(self.group, self.op, 1 / self.predivide_factor, self.predivide_factor)
        if self.compression is NoneCompressor:
            return start_in_place(call, marks.apply_to(tensor), name, blocking).wait
        compressed, context = self.compression.compress(tensor)
        handle = start_in_place(call, marks.apply_to(compressed), name, blocking)

        def finish() -> torch.Tensor:
            handle.wait()
            return tensor.copy_(self.compression.decompress(compressed, context))

        return finish


class Marks(NamedTuple):
    """Facts that must be the same on all ranks when they combine a bucket. A rank sends the marks
    as dimensions of length 1 in the shape of the call. This costs nothing, because the ranks
    compare the shapes of each call anyway. If the shapes differ, all ranks get an error."""

    step_dropped: bool  # this rank did not make the step for the last combined gradients
    gradients_changed: bool  # this rank's program changed gradients before the bucket was combined

    def apply_to(self, tensor: torch.Tensor) -> torch.Tensor:
        ones = (1,) * self.leading_one_count()
        return tensor.view(ones + tuple(tensor.shape)) if ones else tensor

    def leading_one_count(self) -> int:
        """Return the number of dimensions to insert before the tensor's own dimensions."""
        return self.step_dropped + 2 * self.gradients_changed


# The state of a gradient: the tensor, and torch's count of the writes to it.
Version = tuple[torch.Tensor | None, int]


def version_of(gradient: torch.Tensor | None) -> Version:
    return gradient, 0 if gradient is None else gradient._version


def has_version(gradient: torch.Tensor | None, expected: Version) -> bool:
    """Return whether the gradient still has this version: the program has neither replaced the
    gradient nor written to it."""
    return gradient is expected[0] and version_of(gradient)[1] == expected[1]


class Gradient:
    """The gradient of one parameter, and its state in this step."""

    __slots__ = (
        "address",
        "becomes_sparse",
        "bucket",
        "holds_combined_value",
        "last_version",
        "name",
        "parameter",
        "passes_left",
        "place",
        "sparse_result",
        "view",
        "was_unused",
    )

    def __init__(self, parameter: torch.Tensor, passes: int, name: str) -> None:
        """`name` is the name of the parameter, or ""."""
        self.parameter, self.name = parameter, name
        self.passes_left = passes
        self.bucket: Bucket | SparseBucket | None = None  # None while the gradient has no place
        # Set only while the gradient has a place in a dense bucket: the part of the bucket's
        # memory, the address of this part, and the tensor on this part that becomes the parameter's
        # gradient.
        self.place: Any = None
        self.address = 0
        self.view: Any = None
        # Used only with sparse_as_dense. If some rank has a sparse gradient for this parameter,
        # becomes_sparse is True, and the optimizer gets a sparse gradient on all ranks. From
        # backward() to step(), sparse_result is this sparse gradient.
        self.becomes_sparse = False
        self.sparse_result: torch.Tensor | None = None
        # Whether the ranks have combined the gradient and no pass has added to it since.
        self.holds_combined_value = False
        # Used only while the gradient has no place: last_version is the gradient's version after
        # the last pass, and was_unused says whether no rank had the gradient in an earlier step.
        self.last_version: Version | None = None
        self.was_unused = False

    def save_version(self) -> None:
        """Remember the version of the gradient that the current pass has computed."""
        gradient = self.parameter.grad
        # The version of a view cannot be used here, because it also counts writes to other views.
        if gradient is not None and not gradient._is_view():
            self.last_version = version_of(gradient)

    def is_unchanged(self) -> bool:
        """Return whether the gradient is still as the last pass has left it."""
        return self.last_version is None or has_version(self.parameter.grad, self.last_version)

    def set_place(self, place: torch.Tensor) -> None:
        """Give the gradient a place in a bucket."""
        self.place, self.address = place, place.data_ptr()
        self.view = _alias(place)

    def remove_place(self) -> None:
        """Remove the gradient from its bucket. The parameter keeps the memory until its gradient
        has a new place."""
        self.bucket = self.place = self.view = None
        self.was_unused = False

    def must_be_sent(self) -> bool:
        """Return whether the next step must combine the gradient. The wrapped optimizer also uses
        the gradient of a frozen parameter. So the ranks combine that gradient, too, but only once.
        """
        return self.parameter.requires_grad or self._is_uncombined()

    def _is_uncombined(self) -> bool:
        """Return whether the parameter has a gradient that the ranks have not combined."""
        if self.parameter.grad is None:
            return False
        is_still_in_bucket = self.view is None or self.becomes_sparse or self.is_in_bucket()
        return not (self.holds_combined_value and is_still_in_bucket)

    def frozen_state(self) -> int:
        """Return a number that must be the same on all ranks when they combine the gradient."""
        if self.parameter.requires_grad:
            return _TRAINED
        if self.parameter.grad is None:
            return _NO_GRADIENT
        return _COMBINED if self.holds_combined_value else _UNCOMBINED

    def is_combined(self) -> bool:
        return self.bucket is not None and self.bucket.is_combined

    def is_in_bucket(self) -> bool:
        """Return whether the parameter's gradient is the view of its place in the bucket.

        A program may replace the gradient, for example by zero_grad(set_to_none=True). It may also
        replace the memory, as by `p.grad.data = …` and `model.to(memory_format=…)`. This function
        does not notice other strides of the same memory.
        """
        view = self.view
        return self.parameter.grad is view and view.data_ptr() == self.address

    def replace_by_view(self) -> torch.Tensor | None:
        """Make the view the parameter's gradient, without copying values. Return the old
        gradient."""
        old_gradient, self.holds_combined_value = self.parameter.grad, False
        if self.view.data_ptr() != self.address:
            self.set_place(self.place)
        try:
            self.parameter.grad = self.view
        except RuntimeError:
            raise CallError(
                f"a parameter is {_description_of(self.parameter)} now, and was "
                f"{_description_of(self.view)} in the first step of its optimizer: make a new "
                "DistributedOptimizer after such a change"
            ) from None
        return old_gradient

    def move_into_bucket(self) -> None:
        """Copy the gradient into its place if autograd has stored it elsewhere."""
        if self.is_in_bucket() or self.parameter.grad is None:
            return
        value = self.replace_by_view()
        assert value is not None
        self.view.copy_(_dense_detached(value))

    def set_sparse_result(self) -> None:
        """Give the parameter the combined gradient as a sparse tensor, with the rows that are not
        zero."""
        self.sparse_result = self.parameter.grad = self.view.to_sparse(1)

    def is_unchanged_since_combined(self) -> bool:
        """Return whether the bucket's result is unchanged, as far as torch counts writes."""
        return self.bucket is not None and self.bucket.is_unchanged_since_combined(self)

    def has_result(self) -> bool:
        """Return whether the parameter still has the combined gradient."""
        return self.is_in_bucket() or (
            self.sparse_result is not None and self.parameter.grad is self.sparse_result
        )

    def state(self) -> list[object]:
        """Return the identity and version of the parameter's gradient, and some of its elements."""
        gradient = self.parameter.grad
        if gradient is None:
            return []
        values = gradient._values() if gradient.is_sparse else gradient
        return [id(gradient), gradient._version, _sample_bytes(values)]


class _BucketBase:
    """Gradients that are sent together, and their progress in this step. This is the base class of
    dense and sparse buckets."""

    def __init__(self, name: str, gradients: Sequence[Gradient]) -> None:
        self.name = name
        self.gradients = gradients
        # Whether some rank lacked a gradient when the bucket was made. Then step() starts the
        # bucket on all ranks.
        self.is_late = False
        # The number of gradients that are not complete yet; None until one gradient is complete.
        self.incomplete_count: int | None = None
        self.finish: Callable[[], Any] | None = None  # None before the start
        self.is_combined = False
        self._saved_state: Any = None  # the state when backward() returned
        # The versions of the gradients when all of them were complete; None before that.
        self._versions: Any = None
        for gradient in gradients:
            gradient.bucket = self  # type: ignore[assignment]
            gradient.last_version = None

    def is_trained(self) -> bool:
        """Return whether at least one parameter is trained. A bucket of frozen parameters is sent
        only if it has a gradient that is not combined. `requires_grad` must be the same on all
        ranks."""
        return any(gradient.parameter.requires_grad for gradient in self.gradients)

    def count_complete_gradient(self) -> bool:
        """Count a complete gradient, and return whether it was the last one."""
        if self.incomplete_count is None:
            self.incomplete_count = sum(g.parameter.requires_grad for g in self.gradients)
        self.incomplete_count -= 1
        return self.incomplete_count == 0

    def is_full(self) -> bool:
        return self.incomplete_count == 0

    def must_start(self) -> bool:
        """Return whether the bucket must be combined in this step and has not started."""
        return self.finish is None and any(g.must_be_sent() for g in self.gradients)

    def save_state(self) -> None:
        """Remember the state, so that was_changed() can tell whether the program has changed it."""
        self._saved_state = self._state()

    def was_changed(self) -> bool:
        """Return whether the program has changed gradients since save_state(). The state contains a
        sample of the elements, because torch does not count all writes."""
        return self._saved_state is not None and self._saved_state != self._state()

    def _state(self) -> list[object]:
        raise NotImplementedError

    def reset(self, passes: int) -> None:
        self.finish = self.incomplete_count = self._versions = self._saved_state = None
        self.is_combined = False
        for gradient in self.gradients:
            gradient.passes_left = passes
            gradient.sparse_result = None


class Bucket(_BucketBase):
    """Dense gradients of one dtype in shared memory. If one of `former_buckets` has the same
    gradients in the same places, the new bucket reuses the memory of that bucket."""

    def __init__(
        self,
        name: str,
        gradients: Sequence[Gradient],
        planned: PlannedBucket,
        former_buckets: Sequence[Bucket],
    ) -> None:
        super().__init__(name, gradients)
        first_parameter = gradients[0].parameter
        self._offsets = [offset for _, offset in planned.places]
        reused_memory = next(
            (
                bucket._raw_memory
                for bucket in former_buckets
                if bucket._is_reusable_for(gradients, planned)
            ),
            None,
        )
        size_bytes = _bytes_with_states(gradients, planned)
        self._raw_memory: torch.Tensor = (
            _new_memory(first_parameter.device, size_bytes)
            if reused_memory is None
            else reused_memory
        )
        self.memory = self._raw_memory[: planned.bytes].view(first_parameter.dtype)
        self._memory_with_states = self._raw_memory[:size_bytes].view(first_parameter.dtype)
        self._strides: list[tuple[int, ...] | None] = []
        for gradient, (_, offset) in zip(gradients, planned.places, strict=True):
            parameter = gradient.parameter
            begin = offset // parameter.element_size()
            place = self.memory[begin : begin + parameter.numel()]
            strides = torch_tensors.permuted_strides(parameter)  # the same on all ranks
            self._strides.append(strides)
            gradient.set_place(
                place.view(parameter.shape)
                if strides is None
                else place.as_strided(parameter.shape, strides)
            )
        self._sparse_gradients = [gradient for gradient in gradients if gradient.becomes_sparse]
        # Whether the program wrote to a complete gradient before the bucket started.
        self._was_written = False
        self._is_sent_whole = True  # False if the program has its own compressor
        self._combined_version = -1  # the version of the first trained gradient after combining
        # Two lists with the frozen_state() of each gradient: the states at the last start, and the
        # states on which all ranks agreed when they last combined the bucket (None after an error).
        self._frozen_states: list[int] = []
        self._agreed_frozen_states: list[int] | None = [_TRAINED] * len(gradients)
        self._sent_memory = self.memory  # or, if the states are sent, _memory_with_states
        # The values of frozen gradients that were combined earlier: these values must not change.
        self._kept_values: list[tuple[Gradient, torch.Tensor]] = []

    def _is_reusable_for(self, gradients: Sequence[Gradient], planned: PlannedBucket) -> bool:
        """Return whether these gradients can keep their places in this bucket's memory. For this,
        the other ranks must also be able to map that memory."""
        return (
            self.gradients == gradients
            and self._offsets == [offset for _, offset in planned.places]
            and self._strides == [torch_tensors.permuted_strides(g.parameter) for g in gradients]
            and self._raw_memory.numel() == max(_bytes_with_states(gradients, planned), 1)
            and self._raw_memory.device == gradients[0].parameter.device
            and _is_shared(self._raw_memory)
        )

    def move_if_large(self, gradient: Gradient) -> None:
        """Move a complete gradient into the bucket if it is large, so that autograd can reuse the
        gradient's old memory for the next gradient."""
        if gradient.parameter.numel() >= _LARGE_ELEMENTS_MIN:
            gradient.move_into_bucket()

    def fill(self) -> None:
        """Move the gradients that are not in the bucket yet into the bucket. If a trained parameter
        has no gradient, set its place to zeros, because another rank may have the gradient."""
        views, values = [], []
        for gradient in self.gradients:
            if gradient.is_in_bucket() or not gradient.must_be_sent():
                continue
            value = gradient.replace_by_view()
            if value is None:
                gradient.view.zero_()
            else:
                views.append(gradient.view)
                values.append(_dense_detached(value))
        if views:
            torch._foreach_copy_(views, values)
        self._versions = [gradient.view._version for gradient in self.gradients]
        self._was_written = False

    def start(
        self,
        settings: ReductionSettings,
        step_dropped: bool,
        blocking: bool = False,
        gradients_changed: bool = False,
    ) -> None:
        """Start to combine the bucket. Marks explains `step_dropped` and `gradients_changed`."""
        if self._versions is None:
            self.fill()
        else:
            self._was_written = not self._is_unchanged()
        marks = Marks(step_dropped, gradients_changed)
        self._is_sent_whole = settings.can_combine_whole_buckets()
        if self._is_sent_whole:
            self._prepare_frozen_states()
            self.finish = settings.start(self._sent_memory, self.name, blocking, marks)
            return
        [gradient] = self.gradients
        self.finish = settings.start(gradient.view, self.name, blocking, marks)
        self._versions = [gradient.view._version]

    def _prepare_frozen_states(self) -> None:
        """If the state of a parameter has changed since the ranks last agreed on the states, send
        the states behind the gradients, in the same call. If only some ranks send states, the
        shapes differ, and all ranks get an error."""
        self._frozen_states = [gradient.frozen_state() for gradient in self.gradients]
        self._sent_memory = self.memory
        if self._frozen_states != self._agreed_frozen_states:
            self._sent_memory = self._memory_with_states
            rows = self._state_rows()
            rows.zero_()
            rows[range(len(rows)), self._frozen_states] = 1
        self._agreed_frozen_states = None  # wait() sets it when the bucket is combined
        pairs = zip(self.gradients, self._frozen_states, strict=True)
        self._kept_values = [(g, g.view.clone()) for g, state in pairs if state == _COMBINED]

    def _state_rows(self) -> torch.Tensor:
        return self._memory_with_states[self.memory.numel() :].view(-1, len(_FROZEN_STATES))

    def _check_states(self) -> None:
        """Check that the states of all ranks are the same, if they were sent."""
        if self._sent_memory is self.memory:
            return
        rows = self._state_rows()
        # After any op, a row has exactly one nonzero value only if all ranks have the same state.
        differing = ((rows != 0).sum(1) != 1).nonzero()
        if len(differing) > 0:
            index = int(differing[0])
            gradient = self.gradients[index]
            shown_name = f"`{gradient.name}` " if gradient.name else ""
            raise CallError(
                "the ranks have frozen different parameters, or have dropped different gradients "
                f"of frozen parameters: {shown_name}({_description_of(gradient.parameter)}) "
                f"differs, which is number {index} of {len(rows)} in {self.name}. All ranks must "
                "freeze the same parameters, and drop the same gradients"
            )

    def wait(self) -> None:
        if self.finish is None or self.is_combined:
            return
        was_written = self._was_written or not self._is_unchanged()
        try:
            self.finish()  # even after a change: the other ranks wait for this rank
        except CallError as error:
            self.is_combined = True
            raise (_with_shape_explanation(error) if self._is_sent_whole else error) from None
        except Exception:
            self.is_combined = True
            raise
        # A KeyboardInterrupt does not reach this line, so the next wait() waits again.
        self.is_combined = True
        self._check_states()
        for gradient, value in self._kept_values:
            gradient.view.copy_(value)
        self._agreed_frozen_states = self._frozen_states
        if was_written:
            raise changed_error(self.name)
        self._combined_version = self._first_trained().view._version
        for gradient in self._sparse_gradients:
            if gradient.must_be_sent():  # the call changes only these gradients
                gradient.set_sparse_result()
        for gradient in self.gradients:
            gradient.holds_combined_value = True

    def is_unchanged_since_combined(self, gradient: Gradient) -> bool:
        """Return whether this is the first trained gradient of the bucket, and the program has kept
        it unchanged. For other gradients, return False."""
        if gradient is not self._first_trained():
            return False
        if gradient.sparse_result is not None:
            return gradient.parameter.grad is gradient.sparse_result
        return gradient.is_in_bucket() and gradient.view._version == self._combined_version

    def _first_trained(self) -> Gradient:
        return next((g for g in self.gradients if g.parameter.requires_grad), self.gradients[0])

    def has_nonzero(self) -> bool:
        return any(bool(gradient.view.any()) for gradient in self.gradients)

    def _state(self) -> list[object]:
        """Move the gradients that are not in the bucket yet into the bucket, and return the
        state."""
        if not self.is_combined:
            for gradient in self.gradients:
                if gradient.must_be_sent():
                    gradient.move_into_bucket()
        versions = [g.is_in_bucket() and g.view._version for g in self.gradients]
        return [
            versions,
            _sample_bytes(self.memory),
            *(gradient.state() for gradient in self._sparse_gradients),
        ]

    def _is_unchanged(self) -> bool:
        """Return whether the gradients are still as they were when all of them were in the
        bucket."""
        for gradient, before in zip(self.gradients, self._versions, strict=True):
            if gradient.view._version == before and gradient.is_in_bucket():
                continue
            if gradient.parameter.requires_grad:
                return False
        return True


class SparseBucket(_BucketBase):
    """One sparse gradient: each rank sends the rows that it has, with their indices."""

    def __init__(self, name: str, gradient: Gradient) -> None:
        super().__init__(name, [gradient])
        self._combined_version = (0, 0)  # id and version of the combined gradient

    def move_if_large(self, gradient: Gradient) -> None:
        """Do nothing: a sparse gradient stays where it is."""

    def fill(self) -> None:
        self._versions = [version_of(self.gradients[0].parameter.grad)]

    def start(
        self,
        settings: ReductionSettings,
        step_dropped: bool,
        blocking: bool = False,
        gradients_changed: bool = False,
    ) -> None:
        """Start to combine the rows. Marks explains `step_dropped` and `gradients_changed`."""
        if self._versions is None:
            self.fill()
        rows = _gradient_rows(self.gradients[0].parameter)
        marks = Marks(step_dropped, gradients_changed).leading_one_count()
        self.finish = start_sparse(rows, self.name, settings.op, settings.group, marks)

    def wait(self) -> None:
        if self.finish is None or self.is_combined:
            return
        try:
            result = self.finish()  # even after a change: the other ranks wait for this rank
        except CallError as error:
            self.is_combined = True
            raise _with_shape_explanation(error) from None
        except Exception:
            self.is_combined = True
            raise
        self.is_combined = True  # see Bucket.wait()
        parameter = self.gradients[0].parameter
        if not has_version(parameter.grad, *self._versions):
            raise changed_error(self.name)
        parameter.grad = result
        self.gradients[0].holds_combined_value = True
        self._combined_version = id(result), result._version

    def is_unchanged_since_combined(self, gradient: Gradient) -> bool:
        current = gradient.parameter.grad
        return current is not None and (id(current), current._version) == self._combined_version

    def has_nonzero(self) -> bool:
        gradient = self.gradients[0].parameter.grad
        return gradient is not None and bool(gradient._values().any())

    def _state(self) -> list[object]:
        return self.gradients[0].state()


def _bytes_with_states(gradients: Sequence[Gradient], planned: PlannedBucket) -> int:
    element_bytes = gradients[0].parameter.element_size()
    return planned.bytes + len(gradients) * len(_FROZEN_STATES) * element_bytes


def _description_of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _alias(place: torch.Tensor) -> torch.Tensor:
    """Return a tensor that shares the memory of `place`, but is no view for autograd. Hand-written
    zero_grad() functions detach gradients in place, which autograd does not allow for a view."""
    return place.new_empty(0).set_(place)


def _dense_detached(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient dense and detached, so that it can be copied."""
    value = gradient.detach() if gradient.requires_grad else gradient
    return value.to_dense() if value.is_sparse else value


def changed_error(name: str) -> CallError:
    of_bucket = f" of {name}" if name else ""
    return CallError(
        f"gradients were changed between backward() and step(), but those{of_bucket} were not "
        "combined yet: this rank had not computed all of them in backward(), or they were written "
        "to while backward() was running. To clip or scale gradients call optimizer.synchronize() "
        "first, and step() within `with optimizer.skip_synchronize():`"
    )


def _with_shape_explanation(error: CallError) -> CallError:
    """Return the error of a call on a bucket, with other advice if the shapes differ. All ranks
    have the same buckets, so different shapes mean that they have skipped different steps, changed
    gradients, or frozen different parameters."""
    text, _, _ = str(error).rpartition("\n")
    if "the shape differs" not in text:
        return error
    return CallError(
        f"{text}\nThe shape begins with 1 on a rank that has not called step() for the gradients "
        "that were combined last time. It begins with 1, 1 on a rank that has changed gradients "
        "between backward() and step() before they were combined, and with 1, 1, 1 on a rank that "
        "has done both. (The shape of sparse gradients begins with the number of rows, and these "
        "1s come after it.) The shape is longer on a rank that has frozen or unfrozen parameters, "
        "or has dropped gradients of frozen ones. All ranks must make or skip the same steps, "
        "freeze the same parameters, and drop the same gradients. To clip or scale gradients that "
        "some rank has not computed, call optimizer.synchronize() first, and step() within `with "
        "optimizer.skip_synchronize():`"
    )


def _sample_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of some elements that are spread evenly over the tensor."""
    flat = tensor.detach().reshape(-1)
    sampled = flat[:: flat.numel() // _SAMPLE_ELEMENTS + 1].contiguous()
    return bytes(torch_tensors.bytes_of(sampled))


def _new_memory(device: torch.device, size_bytes: int) -> torch.Tensor:
    """Return new memory on the device. The other ranks can map memory on the host."""
    if device.type != "cpu":
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    return torch.from_dlpack(lifecycle.engine().allocate(max(size_bytes, 1)))


def _is_shared(memory: torch.Tensor) -> bool:
    """Return whether the other ranks can map the memory. Memory of a device need not be mapped, so
    return True for it."""
    if memory.device.type != "cpu":
        return True
    return lifecycle.engine().is_shared(memory.data_ptr(), memory.numel())


def _gradient_rows(parameter: torch.Tensor) -> torch.Tensor:
    """Return the parameter's gradient, which may be missing or dense, as rows with indices."""
    gradient = parameter.grad
    if gradient is None:
        indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:])).detach()
        return sparse_of(indices, values, parameter.shape)
    return gradient if gradient.is_sparse else gradient.detach().to_sparse(1)
