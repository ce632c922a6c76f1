"""Gradients in buckets of shared memory, averaged while backward is still running.

A parameter's gradient is a view into its bucket. Autograd's hook says when it is complete; with the
last one of a bucket the allreduce of the whole bucket starts, in place. Buckets are filled in
reverse order of the parameters, which is about the order of backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from farandole import lifecycle
from farandole.bucket_plan import plan_buckets
from farandole.errors import CallError
from farandole.group import Group
from farandole.handle import Handle
from farandole.reduce_op import ReduceOp
from farandole.torch.operations import allreduce_async_
from farandole.torch.tensors import check


class _Gradient:
    """One parameter, and the place of its gradient in a bucket."""

    __slots__ = ("hook", "parameter", "passes_left", "view")

    def __init__(self, parameter: torch.Tensor, view: torch.Tensor, passes: int) -> None:
        self.parameter = parameter
        self.view = view
        self.passes_left = passes
        self.hook: RemovableHandle | None = None

    def move_in(self) -> None:
        """Makes the view the parameter's gradient, with the value that autograd has left.

        After `zero_grad(set_to_none=True)` autograd makes a fresh tensor and the view is stale.
        Without a gradient the value is zero: another rank may have one.
        """
        gradient = self.parameter.grad
        if gradient is self.view:
            return
        if gradient is None:
            self.view.zero_()
        else:
            value = gradient.detach()
            self.view.copy_(value.to_dense() if value.is_sparse else value)
        self.parameter.grad = self.view


class _Bucket:
    def __init__(self, name: str, memory: torch.Tensor) -> None:
        self.name = name
        self.memory = memory
        self.gradients: list[_Gradient] = []
        self.missing: int | None = None  # gradients still to come; None before the first
        self.handle: Handle[torch.Tensor] | None = None
        self.version = 0  # of the memory, when the allreduce started

    def active(self) -> bool:
        """Frozen parameters take no part; `requires_grad` must be the same on all ranks."""
        return any(gradient.parameter.requires_grad for gradient in self.gradients)

    def has_complete_gradients(self) -> bool:
        return self.missing is not None

    def complete_one(self) -> bool:
        """Counts a gradient; True when that was the last."""
        if self.missing is None:
            self.missing = sum(g.parameter.requires_grad for g in self.gradients)
        self.missing -= 1
        return self.missing == 0

    def start(self, op: ReduceOp, group: Group) -> None:
        for gradient in self.gradients:
            if gradient.parameter.requires_grad:
                gradient.move_in()
        self.handle = allreduce_async_(self.memory, name=self.name, op=op, process_set=group)
        self.version = self.memory._version

    def untouched(self) -> bool:
        """Nobody has written to the gradients, or replaced one, since the allreduce started."""
        in_place = (g.parameter.grad is g.view for g in self.gradients if g.parameter.requires_grad)
        return self.memory._version == self.version and all(in_place)

    def finish(self, passes: int) -> None:
        if self.handle is not None:
            untouched = self.untouched()
            self.handle.wait()
            if not untouched:
                raise CallError(
                    "gradients were changed between backward() and step(), while they were being "
                    "combined: to clip or scale them call optimizer.synchronize() first, and "
                    "step() within `with optimizer.skip_synchronize():`"
                )
        self.reset(passes)

    def reset(self, passes: int) -> None:
        self.handle = self.missing = None
        for gradient in self.gradients:
            gradient.passes_left = passes


class Gradients:
    """All gradients of one optimizer. Use from one thread, the one that calls backward."""

    def __init__(self, name: str, op: ReduceOp, passes: int, group: Group) -> None:
        self._name, self._op, self._group = name, op, group
        self._passes = passes
        self._buckets: list[_Bucket] = []
        self._hooks: list[RemovableHandle] = []
        # Nothing was computed since the last reduce().
        self.reduced = False
        weakref.finalize(self, _remove_hooks, self._hooks)

    def add(self, parameters: Sequence[torch.Tensor]) -> None:
        """Takes in parameters; the frozen ones get buckets of their own."""
        for trained in (True, False):
            chosen = [p for p in reversed(parameters) if p.requires_grad == trained]
            self._add_buckets(chosen)

    def _add_buckets(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            check(parameter)
        engine = lifecycle.engine()
        sizes = [(p.dtype, p.numel() * p.element_size()) for p in parameters]
        for planned in plan_buckets(sizes, engine.bucket_bytes):
            memory = torch.from_dlpack(engine.allocate(max(planned.bytes, 1)))
            name = f"{self._name}.{len(self._buckets)}"
            bucket = _Bucket(
                name, memory[: planned.bytes].view(parameters[planned.places[0][0]].dtype)
            )
            for index, offset in planned.places:
                parameter = parameters[index]
                begin = offset // parameter.element_size()
                view = bucket.memory[begin : begin + parameter.numel()].view(parameter.shape)
                bucket.gradients.append(_Gradient(parameter, view, self._passes))
            self._buckets.append(bucket)
            self._watch(bucket)

    def _watch(self, bucket: _Bucket) -> None:
        """Hooks the trained parameters; frozen ones cannot have a hook yet."""
        for gradient in bucket.gradients:
            if gradient.hook is None and gradient.parameter.requires_grad:
                hook = _hook(weakref.ref(self), bucket, gradient)
                gradient.hook = gradient.parameter.register_post_accumulate_grad_hook(hook)
                self._hooks.append(gradient.hook)

    def gradient_is_ready(self, bucket: _Bucket, gradient: _Gradient) -> None:
        if gradient.passes_left == 0:
            raise CallError(
                f"a gradient was computed more than {self._passes} times before step(): for "
                "several backward passes in one step give backward_passes_per_step"
            )
        self.reduced = False
        gradient.passes_left -= 1
        if gradient.passes_left == 0 and bucket.complete_one():
            try:
                bucket.start(self._op, self._group)
            except Exception:
                bucket.reset(self._passes)
                raise

    def reduce(self) -> None:
        """Starts what has not started, in the same order on all ranks, and waits for all."""
        errors: list[Exception] = []
        for bucket in self._buckets:
            try:
                if bucket.handle is None and bucket.active():
                    bucket.start(self._op, self._group)
            except Exception as problem:
                errors.append(problem)
        for bucket in self._buckets:
            try:
                bucket.finish(self._passes)
            except Exception as problem:
                bucket.reset(self._passes)
                errors.append(problem)
        if errors:
            raise errors[0]
        for bucket in self._buckets:
            self._watch(bucket)
        self.reduced = True

    def in_flight(self) -> bool:
        return any(bucket.has_complete_gradients() for bucket in self._buckets)

    def restart(self, passes: int | None = None) -> None:
        """Forgets passes that were counted, as their gradients are gone."""
        self._passes = passes or self._passes
        self.reduced = False
        for bucket in self._buckets:
            bucket.reset(self._passes)


def _hook(
    owner: weakref.ref[Gradients], bucket: _Bucket, gradient: _Gradient
) -> Callable[[torch.Tensor], None]:
    """The parameter must not keep the optimizer alive: a model may get another one."""

    def hook(_: torch.Tensor) -> None:
        gradients = owner()
        if gradients is not None:
            gradients.gradient_is_ready(bucket, gradient)

    return hook


def _remove_hooks(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
