"""DistributedOptimizer: any torch optimizer, with gradients combined over all ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from farandole import arguments, lifecycle
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.reduce_op import Average, ReduceOp, checked
from farandole.torch.gradients import Gradients
from farandole.torch.parameters import PeriodicCheck


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    process_set: Group = global_process_set,
) -> torch.optim.Optimizer:
    """An optimizer of the same class and state as `optimizer`, which must not be used any more.

    While backward runs, gradients are combined by `op` over the process_set; step() waits for
    them. Every trained parameter takes part in every step; where this rank has no gradient, it
    gives zeros. Which parameters are frozen must be the same on all ranks. Sparse gradients become
    dense. backward_passes_per_step: how many passes add up before a step. Besides, there are
    synchronize(), skip_synchronize() and set_backward_passes_per_step().
    """
    engine = lifecycle.engine()
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CallError(
            f"optimizer must be a torch.optim.Optimizer; got a {type(optimizer).__name__}"
        )
    if isinstance(optimizer, _Distributed):
        raise CallError("optimizer is a DistributedOptimizer already: use it as it is")
    names = _checked_names(named_parameters, optimizer)
    _check_passes(backward_passes_per_step)
    arguments.group_number(process_set)
    process_set.rank()  # raises outside the set
    kind = type(optimizer)
    distributed: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {}))
    distributed.__dict__.update(optimizer.__dict__)
    distributed.__dict__.pop("step", None)  # left by a learning rate scheduler; calls the old one
    if process_set.size() > 1:
        name = f"gradients.{process_set.next_optimizer()}"
        distributed._gradients = Gradients(name, checked(op), backward_passes_per_step, process_set)
        distributed._gradients.add(_parameters(optimizer.param_groups))
        if every := engine.check_parameters:
            distributed._check = PeriodicCheck(every, f"{name}.parameters", process_set)
            distributed._names = names
    return distributed


def _parameters(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def _checked_names(
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None, optimizer: torch.optim.Optimizer
) -> dict[int, str]:
    """The names of the optimizer's parameters, by id()."""
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise CallError(
            "named_parameters must hold (name, parameter) pairs, as those of "
            "model.named_parameters()"
        )
    counts = Counter(name for name, _ in pairs)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise CallError(
            f"named_parameters has names that occur twice: {', '.join(twice)}; give each parameter "
            "a name of its own"
        )
    named = {id(parameter): name for name, parameter in pairs}
    ours = _parameters(optimizer.param_groups)
    unnamed = [p for p in ours if id(p) not in named]
    if unnamed:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in unnamed[:5])
        raise CallError(
            f"named_parameters lacks {len(unnamed)} parameters of the optimizer, of shape "
            f"{shapes}; give the names of all"
        )
    return {id(p): named[id(p)] for p in ours}


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise CallError(f"backward_passes_per_step must be at least 1, not {passes}")


class _Distributed(torch.optim.Optimizer):
    """What is put before the class of the wrapped optimizer."""

    _gradients: Gradients | None = None  # None when this rank is alone
    _synchronizing = True
    _check: PeriodicCheck | None = None
    _names: Mapping[int, str] = {}

    def synchronize(self) -> None:
        """Waits until the gradients are combined; to look at or clip them before step()."""
        if self._gradients is not None:
            self._gradients.reduce()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() does not synchronize: synchronize() was called."""
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        _check_passes(passes)
        self._check_nothing_in_flight("set_backward_passes_per_step()")
        if self._gradients is not None:
            self._gradients.restart(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = self._step(closure)
        if self._check is not None:
            self._check.after_step(self._named_parameters)
        return result

    # The wrapped class calls the step hooks; this keeps torch from calling them twice.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        gradients = self._gradients
        # Some optimizers take no closure at all.
        closures = () if closure is None else (closure,)
        if gradients is None:
            return super().step(*closures)
        if not self._synchronizing:
            gradients.reduced = False
            return super().step(*closures)
        if closure is not None:
            result = super().step(self._synchronized(closure))
            gradients.reduced = False
            return result
        if gradients.reduced:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(); the gradients are not combined a second time",
                stacklevel=3,
            )
        else:
            gradients.reduce()
        gradients.reduced = False
        return super().step()

    def _named_parameters(self) -> dict[str, torch.Tensor]:
        return {
            self._names.get(id(parameter), f"param_groups[{g}]['params'][{p}]"): parameter
            for g, group in enumerate(self.param_groups)
            for p, parameter in enumerate(group["params"])
        }

    def _synchronized(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return evaluate

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._check_nothing_in_flight("zero_grad()")
        if self._gradients is not None:
            self._gradients.restart()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._gradients is not None:
            self._gradients.add(_parameters([param_group]))

    def _check_nothing_in_flight(self, call: str) -> None:
        if self._gradients is not None and self._gradients.in_flight():
            raise CallError(
                f"{call} was called after backward(), while gradients are in flight: call step() "
                "or synchronize() before"
            )
