"""Buckets of gradients in shared memory, and sparse gradients, each of which travels alone.

The memory of a parameter's gradient is part of its bucket, so nothing is packed: the ranks combine
the bucket in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from farandole import lifecycle
from farandole.bucket_plan import PlannedBucket
from farandole.errors import CallError
from farandole.group import Group
from farandole.operations import Allreduce
from farandole.reduce_op import ReduceOp
from farandole.torch.calls import start_in_place
from farandole.torch.compression import BF16Compressor, FP16Compressor, NoneCompressor
from farandole.torch.sparse import sparse_allreduce_async, sparse_of

_LARGE = 1 << 15  # in elements
_SAMPLE = 1 << 12  # in elements


@dataclass(frozen=True)
class Combination:
    """How gradients are combined. It is the same on all members of the group."""

    group: Group
    op: ReduceOp
    compression: Any  # a Compressor
    # Gradients are divided by this factor before the sum, and the sum is multiplied by it.
    predivide_factor: float
    sparse_as_dense: bool

    def takes_whole_buckets(self) -> bool:
        """Return whether a bucket can be sent as one tensor. A program's own compressor may
        treat each tensor in its own way, so it gets the gradients one by one."""
        return self.compression in (NoneCompressor, FP16Compressor, BF16Compressor)

    def start(self, tensor: torch.Tensor, name: str, waits: bool) -> Callable[[], object]:
        """Start to combine a tensor in place, and return a function that waits for it."""
        call = Allreduce(self.group, self.op, 1 / self.predivide_factor, self.predivide_factor)
        if self.compression is NoneCompressor:
            return start_in_place(call, tensor, name, waits).wait
        sent, context = self.compression.compress(tensor)
        smaller = start_in_place(call, sent, name, waits)
        return lambda: tensor.copy_(self.compression.decompress(smaller.wait(), context))


# The state of a gradient: the tensor, and how often it had been written to.
Version = tuple[torch.Tensor | None, int]


def version(gradient: torch.Tensor | None) -> Version:
    return gradient, 0 if gradient is None else gradient._version


def unchanged(gradient: torch.Tensor | None, before: Version) -> bool:
    """Return whether the program has neither replaced the gradient nor written to it."""
    return gradient is before[0] and version(gradient)[1] == before[1]


class Gradient:
    """The gradient of one parameter, and its state in this step."""

    __slots__ = (
        "address",
        "bucket",
        "hook",
        "parameter",
        "passes_left",
        "place",
        "seen",
        "unused",
        "view",
    )

    def __init__(self, parameter: torch.Tensor, passes: int) -> None:
        self.parameter = parameter
        self.passes_left = passes
        self.hook: RemovableHandle | None = None
        self.bucket: Bucket | SparseBucket | None = None  # None while it has no place
        # Only with a place in a dense bucket: the part of the memory, its address, and the tensor
        # that is the parameter's gradient there.
        self.place: Any = None
        self.address = 0
        self.view: Any = None
        # Only without a place: the gradient that the last pass has left, and whether no rank had
        # the gradient in an earlier step.
        self.seen: Version | None = None
        self.unused = False

    def note(self) -> None:
        """Remember the gradient as the current pass has left it."""
        gradient = self.parameter.grad
        # The version of a view also counts writes to its neighbours, so it is of no use.
        if gradient is not None and not gradient._is_view():
            self.seen = version(gradient)

    def untouched(self) -> bool:
        """Return whether the program has left the gradient alone since its last pass."""
        return self.seen is None or unchanged(self.parameter.grad, self.seen)

    def settle(self, place: torch.Tensor) -> None:
        """Give the gradient a place in a bucket."""
        self.place, self.address = place, place.data_ptr()
        self.view = _alias(place)

    def leave(self) -> None:
        """Take the place away. The parameter keeps the memory until its gradient has a new
        place."""
        self.bucket = self.place = self.view = None
        self.unused = False

    def is_combined(self) -> bool:
        return self.bucket is not None and self.bucket.combined

    def is_home(self) -> bool:
        """Return whether the parameter's gradient is in its place.

        Programs replace it, for example by zero_grad(set_to_none=True), or they replace its memory,
        as by `p.grad.data = …` and `model.to(memory_format=…)`. Other strides of the same memory
        are not noticed.
        """
        view = self.view
        return self.parameter.grad is view and view.data_ptr() == self.address

    def move_into_bucket(self) -> torch.Tensor | None:
        """Make the view the parameter's gradient. Return the gradient from before."""
        before = self.parameter.grad
        if self.view.data_ptr() != self.address:
            self.settle(self.place)
        try:
            self.parameter.grad = self.view
        except RuntimeError:
            raise CallError(
                f"a parameter is {_text_of(self.parameter)} now, and was {_text_of(self.view)} in "
                "the first step of its optimizer: make a new DistributedOptimizer after such a "
                "change"
            ) from None
        return before

    def move_in(self) -> None:
        """Copy a gradient that autograd has left elsewhere into its place."""
        if self.is_home() or self.parameter.grad is None:
            return
        value = self.move_into_bucket()
        assert value is not None
        self.view.copy_(_plain(value))


class _Shipment:
    """Gradients that are sent together, and their progress in this step."""

    def __init__(self, name: str, gradients: Sequence[Gradient]) -> None:
        self.name = name
        self.gradients = gradients
        self.late = False  # some rank lacked a part, so step() starts it on all ranks
        # How many gradients are not complete; None before the first one.
        self.missing: int | None = None
        self.finish: Callable[[], Any] | None = None  # None before the start
        self.combined = False
        self._note: Any = None  # the state when backward() returned
        # The versions at the time when all gradients were complete; None before that.
        self._versions: Any = None
        for gradient in gradients:
            gradient.bucket = self  # type: ignore[assignment]
            gradient.seen = None

    def active(self) -> bool:
        """Return whether they are sent: frozen parameters are not. `requires_grad` must be the
        same on all ranks."""
        return any(gradient.parameter.requires_grad for gradient in self.gradients)

    def complete_one(self) -> bool:
        """Count a complete gradient, and return whether it was the last one."""
        if self.missing is None:
            self.missing = sum(g.parameter.requires_grad for g in self.gradients)
        self.missing -= 1
        return self.missing == 0

    def is_full(self) -> bool:
        return self.missing == 0

    def is_left(self) -> bool:
        """Return whether it must be combined in this step and has not started."""
        return self.finish is None and self.active()

    def has_begun(self, passes: int) -> bool:
        """Return whether this rank has computed a part of it in a pass that counts."""
        return any(gradient.passes_left < passes for gradient in self.gradients)

    def note(self) -> None:
        """Remember the state, so that was_changed() can tell whether the program has changed it."""
        self._note = self._state()

    def was_changed(self) -> bool:
        """Return whether the program has changed gradients since note(). A sample of the
        elements shows writes that torch does not count."""
        return self._note is not None and self._note != self._state()

    def _state(self) -> list[object]:
        raise NotImplementedError

    def reset(self, passes: int) -> None:
        self.finish = self.missing = self._versions = self._note = None
        self.combined = False
        for gradient in self.gradients:
            gradient.passes_left = passes


class Bucket(_Shipment):
    """Dense gradients of one dtype in shared memory. Takes the memory of the former bucket with the
    same gradients in the same places, if there is one."""

    def __init__(
        self,
        name: str,
        gradients: Sequence[Gradient],
        planned: PlannedBucket,
        former: Sequence[Bucket],
    ) -> None:
        super().__init__(name, gradients)
        first = gradients[0].parameter
        self._offsets = [offset for _, offset in planned.places]
        raw = next((each._raw for each in former if each._fits(gradients, planned)), None)
        self._raw: torch.Tensor = _memory(first.device, planned.bytes) if raw is None else raw
        self.memory = self._raw[: planned.bytes].view(first.dtype)
        for gradient, (_, offset) in zip(gradients, planned.places, strict=True):
            parameter = gradient.parameter
            begin = offset // parameter.element_size()
            place = self.memory[begin : begin + parameter.numel()]
            gradient.settle(place.view(parameter.shape))
        self._touched = False  # the program wrote to it between its completion and its start

    def _fits(self, gradients: Sequence[Gradient], planned: PlannedBucket) -> bool:
        """Return whether these gradients can have the same places again, in memory that the peers
        see."""
        return (
            self.gradients == gradients
            and self._offsets == [offset for _, offset in planned.places]
            and self._raw.numel() == max(planned.bytes, 1)
            and self._raw.device == gradients[0].parameter.device
            and _is_visible(self._raw)
        )

    def take(self, gradient: Gradient) -> None:
        """Take a complete gradient. A large one is moved at once, so that its memory is free for
        the next."""
        if gradient.parameter.numel() >= _LARGE:
            gradient.move_in()

    def fill(self) -> None:
        """Move in the gradients that are still elsewhere. Without a gradient the values are
        zeros, because another rank may have one."""
        views, fresh = [], []
        for gradient in self.gradients:
            if not gradient.parameter.requires_grad or gradient.is_home():
                continue
            value = gradient.move_into_bucket()
            if value is None:
                gradient.view.zero_()
            else:
                views.append(gradient.view)
                fresh.append(_plain(value))
        if views:
            torch._foreach_copy_(views, fresh)
        self._versions = [gradient.view._version for gradient in self.gradients]
        self._touched = False

    def start(self, combination: Combination, waits: bool = False) -> None:
        if self._versions is None:
            self.fill()
        else:
            self._touched = not self._untouched()
        if combination.takes_whole_buckets():
            self.finish = combination.start(self.memory, self.name, waits)
            return
        [gradient] = self.gradients
        self.finish = combination.start(gradient.view, self.name, waits)
        self._versions = [gradient.view._version]

    def wait(self) -> None:
        if self.finish is None or self.combined:
            return
        touched = self._touched or not self._untouched()
        self.combined = True
        self.finish()  # also after an error, because the others wait for us
        if touched:
            raise changed(self.name)

    def has_values(self) -> bool:
        return any(bool(gradient.view.any()) for gradient in self.gradients)

    def _state(self) -> list[object]:
        """Move in the gradients that are still elsewhere, and return the state."""
        if not self.combined:
            for gradient in self.gradients:
                gradient.move_in()
        homes = [gradient.is_home() and gradient.view._version for gradient in self.gradients]
        return [homes, _sample(self.memory)]

    def _untouched(self) -> bool:
        """Return whether the program has left the gradients alone since all of them are in the
        bucket."""
        for gradient, before in zip(self.gradients, self._versions, strict=True):
            if gradient.view._version == before and gradient.is_home():
                continue
            if gradient.parameter.requires_grad:
                return False
        return True


class SparseBucket(_Shipment):
    """One gradient whose rows travel with their indices: each rank sends the rows that it has."""

    def __init__(self, name: str, gradient: Gradient) -> None:
        super().__init__(name, [gradient])

    def take(self, gradient: Gradient) -> None:
        """Do nothing: a sparse gradient stays where it is."""

    def fill(self) -> None:
        self._versions = [version(self.gradients[0].parameter.grad)]

    def start(self, combination: Combination, waits: bool = False) -> None:
        if self._versions is None:
            self.fill()
        mine = _rows(self.gradients[0].parameter)
        self.finish = sparse_allreduce_async(mine, self.name, combination.op, combination.group)

    def wait(self) -> None:
        if self.finish is None or self.combined:
            return
        self.combined = True
        result = self.finish()  # also after an error, because the others wait for us
        parameter = self.gradients[0].parameter
        if not unchanged(parameter.grad, *self._versions):
            raise changed(self.name)
        parameter.grad = result

    def has_values(self) -> bool:
        gradient = self.gradients[0].parameter.grad
        return gradient is not None and bool(gradient._values().any())

    def _state(self) -> list[object]:
        gradient = self.gradients[0].parameter.grad
        if gradient is None:
            return []
        values = gradient._values() if gradient.is_sparse else gradient
        return [id(gradient), gradient._version, _sample(values)]


def _text_of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _alias(place: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a tensor of its own. Autograd cannot detach a view in place, but
    hand-written zero_grad() functions do that."""
    return place.new_empty(0).set_(place)


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient dense and detached, so that it can be copied."""
    value = gradient.detach() if gradient.requires_grad else gradient
    return value.to_dense() if value.is_sparse else value


def changed(name: str) -> CallError:
    of = f" of {name}" if name else ""
    return CallError(
        f"gradients were changed between backward() and step(), but those{of} were not combined "
        "yet: this rank had not computed all of them in backward(), or they were written to while "
        "backward() was running. To clip or scale gradients call optimizer.synchronize() first, "
        "and step() within `with optimizer.skip_synchronize():`"
    )


def _sample(tensor: torch.Tensor) -> bytes:
    """Return the bits of some elements from all over the tensor."""
    flat = tensor.detach().reshape(-1)
    few = flat[:: flat.numel() // _SAMPLE + 1].contiguous()
    return few.view(torch.uint8).cpu().numpy().tobytes()


def _memory(device: torch.device, size: int) -> torch.Tensor:
    """Return memory that the peers can see, if it is host memory."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    return torch.from_dlpack(lifecycle.engine().allocate(max(size, 1)))


def _is_visible(memory: torch.Tensor) -> bool:
    if memory.device.type != "cpu":
        return True
    return lifecycle.engine().is_shared(memory.data_ptr(), memory.numel())


def _rows(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient as rows with indices. It may be missing or dense."""
    gradient = parameter.grad
    if gradient is None:
        indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:])).detach()
        return sparse_of(indices, values, parameter.shape)
    return gradient if gradient.is_sparse else gradient.detach().to_sparse(1)
