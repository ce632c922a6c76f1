"""What of the gradients travels as one: buckets in shared memory, and sparse gradients, each alone.

A parameter's gradient has its memory in its bucket, so nothing is packed: the ranks combine the
bucket in place.
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

_LARGE = 1 << 15  # elements
_SAMPLE = 1 << 12  # elements


@dataclass(frozen=True)
class Combination:
    """How gradients are combined: the same on all members of the group."""

    group: Group
    op: ReduceOp
    compression: Any  # a Compressor
    # The gradients are divided by it before they are added up, and multiplied by it afterwards.
    predivide_factor: float
    sparse_as_dense: bool

    def takes_whole_buckets(self) -> bool:
        """A program's own compressor may treat each tensor in another way, by its shape too."""
        return self.compression in (NoneCompressor, FP16Compressor, BF16Compressor)

    def start(self, tensor: torch.Tensor, name: str, waits: bool) -> Callable[[], object]:
        """Returns what waits until the tensor is combined, in place."""
        call = Allreduce(self.group, self.op, 1 / self.predivide_factor, self.predivide_factor)
        if self.compression is NoneCompressor:
            return start_in_place(call, tensor, name, waits).wait
        sent, context = self.compression.compress(tensor)
        smaller = start_in_place(call, sent, name, waits)
        return lambda: tensor.copy_(self.compression.decompress(smaller.wait(), context))


# A gradient as it was: the tensor, and how often that had been written to.
Version = tuple[torch.Tensor | None, int]


def version(gradient: torch.Tensor | None) -> Version:
    return gradient, 0 if gradient is None else gradient._version


def unchanged(gradient: torch.Tensor | None, before: Version) -> bool:
    """Nobody has replaced it, or written to it."""
    return gradient is before[0] and version(gradient)[1] == before[1]


class Gradient:
    """That of one parameter, and what has become of it in this step."""

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
        self.bucket: Bucket | SparseBucket | None = None  # when it has a place
        # Of a dense one with a bucket: its part of the memory, where that is, and what is the
        # parameter's gradient there.
        self.place: Any = None
        self.address = 0
        self.view: Any = None
        # Before it has one: what the last pass has left, and whether there was a step in which no
        # rank had it.
        self.seen: Version | None = None
        self.unused = False

    def note(self) -> None:
        gradient = self.parameter.grad
        # The version of a view changes with its neighbours: it says nothing.
        if gradient is not None and not gradient._is_view():
            self.seen = version(gradient)

    def untouched(self) -> bool:
        """Nobody has written to it, or replaced it, since its last pass."""
        return self.seen is None or unchanged(self.parameter.grad, self.seen)

    def settle(self, place: torch.Tensor) -> None:
        """From now on the gradient is there."""
        self.place, self.address = place, place.data_ptr()
        self.view = _alias(place)

    def leave(self) -> None:
        """From now on it has no place. The parameter keeps the memory until it has a new one."""
        self.bucket = self.place = self.view = None
        self.unused = False

    def is_combined(self) -> bool:
        return self.bucket is not None and self.bucket.combined

    def is_home(self) -> bool:
        """Is the parameter's gradient in its place? Programs replace it, as also
        `zero_grad(set_to_none=True)` does, or its memory, as `p.grad.data = …` and
        `model.to(memory_format=…)` do. (Nobody looks for other strides of the same memory.)"""
        view = self.view
        return self.parameter.grad is view and view.data_ptr() == self.address

    def move_into_bucket(self) -> torch.Tensor | None:
        """Makes the view the parameter's gradient. Returns what that was before."""
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
        """Brings into its place what autograd has left elsewhere."""
        if self.is_home() or self.parameter.grad is None:
            return
        value = self.move_into_bucket()
        assert value is not None
        self.view.copy_(_plain(value))


class _Shipment:
    """Gradients that travel as one, and how far they are in this step."""

    def __init__(self, name: str, gradients: Sequence[Gradient]) -> None:
        self.name = name
        self.gradients = gradients
        self.late = False  # on all ranks step() starts it, since some rank did not have all of it
        self.missing: int | None = None  # gradients still to come; None before the first
        self.finish: Callable[[], Any] | None = None  # once it has started
        self.combined = False
        self._note: Any = None  # what the program found when backward returned
        # Of what travels, since all gradients are complete; before that None.
        self._versions: Any = None
        for gradient in gradients:
            gradient.bucket = self  # type: ignore[assignment]
            gradient.seen = None

    def active(self) -> bool:
        """Frozen parameters take no part; `requires_grad` must be the same on all ranks."""
        return any(gradient.parameter.requires_grad for gradient in self.gradients)

    def complete_one(self) -> bool:
        """Counts a gradient; True when that was the last."""
        if self.missing is None:
            self.missing = sum(g.parameter.requires_grad for g in self.gradients)
        self.missing -= 1
        return self.missing == 0

    def is_full(self) -> bool:
        return self.missing == 0

    def is_left(self) -> bool:
        """Takes part in this step, and has not started."""
        return self.finish is None and self.active()

    def has_begun(self, passes: int) -> bool:
        """Has this rank computed some of it, by a backward pass that counts?"""
        return any(gradient.passes_left < passes for gradient in self.gradients)

    def note(self) -> None:
        """Keeps what tells later whether the program has changed gradients."""
        self._note = self._state()

    def was_changed(self) -> bool:
        """Since note(). Writes that torch does not count are found by looking at some elements."""
        return self._note is not None and self._note != self._state()

    def _state(self) -> list[object]:
        raise NotImplementedError

    def reset(self, passes: int) -> None:
        self.finish = self.missing = self._versions = self._note = None
        self.combined = False
        for gradient in self.gradients:
            gradient.passes_left = passes


class Bucket(_Shipment):
    def __init__(
        self,
        name: str,
        gradients: Sequence[Gradient],
        planned: PlannedBucket,
        former: Sequence[Bucket],
    ) -> None:
        """Takes the memory of the former bucket with the same places, if there is one."""
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
        self._touched = False  # between being complete and the start

    def _fits(self, gradients: Sequence[Gradient], planned: PlannedBucket) -> bool:
        """Can these gradients have the same places again, where the peers see them?"""
        return (
            self.gradients == gradients
            and self._offsets == [offset for _, offset in planned.places]
            and self._raw.numel() == max(planned.bytes, 1)
            and self._raw.device == gradients[0].parameter.device
            and _is_visible(self._raw)
        )

    def take(self, gradient: Gradient) -> None:
        """A complete gradient. A large one is moved at once: its memory is free for the next."""
        if gradient.parameter.numel() >= _LARGE:
            gradient.move_in()

    def fill(self) -> None:
        """Moves in what is not there yet. Where there is no gradient the value is zero: another
        rank may have one."""
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
        self.finish()  # in any case: the others wait for us
        if touched:
            raise changed(self.name)

    def has_values(self) -> bool:
        return any(bool(gradient.view.any()) for gradient in self.gradients)

    def _state(self) -> list[object]:
        """Moves in what is not there yet."""
        if not self.combined:
            for gradient in self.gradients:
                gradient.move_in()
        homes = [gradient.is_home() and gradient.view._version for gradient in self.gradients]
        return [homes, _sample(self.memory)]

    def _untouched(self) -> bool:
        """Nobody has written to the gradients, or replaced one, since all are here."""
        for gradient, before in zip(self.gradients, self._versions, strict=True):
            if gradient.view._version == before and gradient.is_home():
                continue
            if gradient.parameter.requires_grad:
                return False
        return True


class SparseBucket(_Shipment):
    """One gradient whose rows travel with their indices: each rank sends those that it has."""

    def __init__(self, name: str, gradient: Gradient) -> None:
        super().__init__(name, [gradient])

    def take(self, gradient: Gradient) -> None:
        """A complete gradient."""

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
        result = self.finish()  # in any case: the others wait for us
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
    """The same memory, as a tensor of its own: what autograd calls a view cannot be detached in
    place, which hand-written zero_grad() functions do."""
    return place.new_empty(0).set_(place)


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """As what is to be copied: dense, and without a gradient of its own."""
    value = gradient.detach() if gradient.requires_grad else gradient
    return value.to_dense() if value.is_sparse else value


def changed(name: str) -> CallError:
    of = f" of {name}" if name else ""
    return CallError(
        f"gradients were changed between backward() and step(), but those{of} were not combined "
        "yet: this rank had not computed all of them in backward(), or they were written to while "
        "backward() was running. To clip or scale gradients call optimizer.synchronize() first, "
        "and step() within `with optimizer.skip_synchronize():`. A parameter has one "
        "DistributedOptimizer at a time"
    )


def _sample(tensor: torch.Tensor) -> bytes:
    """Of elements all over the tensor: their bits."""
    flat = tensor.detach().reshape(-1)
    few = flat[:: flat.numel() // _SAMPLE + 1].contiguous()
    return few.view(torch.uint8).cpu().numpy().tobytes()


def _memory(device: torch.device, size: int) -> torch.Tensor:
    """Bytes that the peers can see, if they are on the host."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    return torch.from_dlpack(lifecycle.engine().allocate(max(size, 1)))


def _is_visible(memory: torch.Tensor) -> bool:
    if memory.device.type != "cpu":
        return True
    return lifecycle.engine().is_shared(memory.data_ptr(), memory.numel())


def _rows(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient as rows with indices, also where there is none, or a dense one."""
    gradient = parameter.grad
    if gradient is None:
        indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:])).detach()
        return sparse_of(indices, values, parameter.shape)
    return gradient if gradient.is_sparse else gradient.detach().to_sparse(1)
