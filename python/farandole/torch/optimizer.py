"""DistributedOptimizer: any torch optimizer, with gradients that are combined over all ranks."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from farandole import arguments, lifecycle
from farandole.compression import AnyCompressor, checked_compression
from farandole.errors import CallError, MisuseError
from farandole.group import Group, OptimizerName, Period, global_process_set
from farandole.reduce_op import Adasum, Average, AverageOfPresent, Max, ReduceOp, Sum, checked_op
from farandole.torch import tensors as torch_tensors
from farandole.torch.compression import Compression
from farandole.torch.dynamo import outside_dynamo
from farandole.torch.operations import allreduce, allreduce_, grouped_allreduce_async_
from farandole.torch.optimizer_types import keeps_class
from farandole.torch.training.buckets import ReductionSettings
from farandole.torch.training.grad_scaler import has_unscaled, scaler_in_step, share_overflow
from farandole.torch.training.gradients import Gradients
from farandole.training.optimizer_arguments import (
    checked_factor,
    checked_names,
    checked_passes,
    parameters_by_group,
)
from farandole.training.pairing import in_common_order
from farandole.training.periodic_check import PeriodicCheck


# size waiver: Horovod's arguments
@keeps_class
def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: AnyCompressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: Group = global_process_set,
) -> torch.optim.Optimizer:
    """Return an optimizer that combines gradients and has the class and the state of `optimizer`.
    Do not use `optimizer` any more.

    Gradients are combined by `op` over the process_set while backward() runs. backward() waits for
    them. step() combines the gradients that backward() has not combined. Every trained parameter
    takes part in every step; a rank without a gradient for it adds zeros. All ranks must freeze the
    same parameters. A rank outside of the process_set trains alone. In an elastic job, it trains
    alone only until it becomes a member.

    The optimizer also has synchronize(), skip_synchronize(), set_backward_passes_per_step() and
    no_sync(). Use it from the thread that calls backward().

    Args:
        optimizer: Any torch optimizer.
        named_parameters: `model.named_parameters()`. The ranks pair their parameters by name;
            without names, by their order. Errors contain the names.
        compression: The form in which gradients are sent, such as Compression.bf16.
        backward_passes_per_step: How many backward passes add to the gradients before a step. A
            step() after fewer passes combines the gradients so far. Passes within `no_sync()` do
            not count.
        op: With Adasum, each rank makes its own step, and the changes of the parameters are
            combined.
        gradient_predivide_factor: With Average and a factor f, each gradient is divided by f before
            the sum, and the sum is divided by size / f.
        num_groups: Horovod's older argument for `groups` as a number.
        groups: The number of groups, or a list of groups, which are lists of parameters. The
            parameters of a group are sent together, in one bucket per dtype; a parameter in no
            group is sent alone. By default, buckets are filled in the order in which gradients
            become complete.
        sparse_as_dense: If True, sparse gradients are sent as dense ones, and the optimizer gets
            sparse ones again, with the rows that are not zero. If False, the rows of sparse
            gradients are sent with their indices.
        process_set: The group.

    Raises:
        CallError: An argument is wrong. CallError is also a ValueError.

    Example::

        model = torch.nn.Linear(4, 2)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    """
    engine = lifecycle.engine()
    parameters = parameters_of(_checked_optimizer(optimizer).param_groups)
    named_parameter_list = None if named_parameters is None else list(named_parameters)
    names = checked_names(named_parameter_list, parameters)
    passes = checked_passes(backward_passes_per_step)
    arguments.group_number(process_set)
    op = checked_op(op)
    predivide_factor = checked_factor(gradient_predivide_factor, op)
    # If param_groups was made from a set, its order differs between the ranks. So use the order of
    # the names.
    positions = {parameter_id: i for i, parameter_id in enumerate(names)}
    ordered_parameters = sorted(parameters, key=lambda parameter: positions.get(id(parameter), 0))
    parameter_groups = parameters_by_group(
        groups, num_groups, ordered_parameters, torch_tensors.is_array
    )
    compressor = checked_compression(compression)
    settings = ReductionSettings(process_set, op, compressor, predivide_factor, sparse_as_dense)
    wrapped_class = type(optimizer)
    base_class = _AdasumOptimizer if op is Adasum else AnyDistributedOptimizer
    distributed: Any = object.__new__(type(wrapped_class.__name__, (base_class, wrapped_class), {}))
    distributed.__dict__.update(optimizer.__dict__)
    # A learning rate scheduler may have set this attribute to a function that calls the old step().
    distributed.__dict__.pop("step", None)
    distributed._settings, distributed._passes = settings, passes
    distributed._names, distributed._named_parameter_list = names, named_parameter_list
    # In an elastic job, a group of one rank may grow, and this rank may become a member later.
    is_alone = process_set.size() == 1 and not lifecycle.is_elastic()
    if is_alone or not (process_set.included() or lifecycle.is_elastic()):
        return distributed
    distributed._name = name = OptimizerName(process_set)
    if op is Adasum:
        distributed._delta_combiner = _DeltaCombiner(name, settings, names)
    else:
        distributed._gradients = Gradients(name, settings, passes, parameter_groups, names)
        distributed._gradients.add(parameters)
    if interval := int(engine.settings["FARANDOLE_CHECK_PARAMETERS"]):
        distributed._periodic_check = PeriodicCheck(torch_tensors, interval, name, process_set)
    return distributed


def parameters_of(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def check_optimizer(optimizer: object) -> None:
    """Raise CallError unless this is a torch optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CallError(
            f"optimizer must be a torch.optim.Optimizer; got a {type(optimizer).__name__}"
        )


def _checked_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    check_optimizer(optimizer)
    if isinstance(optimizer, AnyDistributedOptimizer):
        raise CallError("optimizer is a DistributedOptimizer already: use it as it is")
    return optimizer


# Two equal values of one of these types have the same text on all ranks.
_PRINTED_TYPES = (bool, int, float, str, tuple, torch.Tensor, type(None))


class AnyDistributedOptimizer(torch.optim.Optimizer):
    """Every optimizer that DistributedOptimizer() returns is an instance of this class and of the
    class of the wrapped optimizer. Use this class for isinstance() and in annotations. Call
    DistributedOptimizer() to make an object."""

    _settings: ReductionSettings
    _passes: int
    _name: OptimizerName  # not set when this rank trains alone
    _names: Mapping[int, str]  # the names of the parameters, by id()
    # The argument named_parameters. Some of its parameters may be added to the optimizer later. The
    # list keeps them alive, so that no other object gets their id().
    _named_parameter_list: list[tuple[str, torch.Tensor]] | None
    _gradients: Gradients | None = None  # None if this rank always trains alone
    _step_synchronizes = True
    # Whether a GradScaler, or a step() that has failed, has combined the gradients of this step.
    _has_combined = False
    _periodic_check: PeriodicCheck | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reject copy, deepcopy and pickle, which all call this method. A copy would have no hooks,
        so it would train alone."""
        raise CallError(
            "a DistributedOptimizer cannot be copied or pickled. To copy a training, copy the "
            "model, make a new DistributedOptimizer for the parameters of the copy, and give it "
            "optimizer.state_dict() by load_state_dict(); to save one, save model.state_dict() "
            "and optimizer.state_dict()"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the wrapped step() unscales gradients and skips itself after an overflow. If
        GradScaler.step() reads this property, the property first combines the gradients;
        training/grad_scaler.py says why."""
        scaler, gradients = scaler_in_step(sys._getframe(1)), self._active_gradients
        if scaler is not None and gradients is not None and self._step_synchronizes:
            if gradients.needs_reduce():
                gradients.reduce(has_unscaled(scaler, self))
                self._has_combined = True
            share_overflow(scaler, self, self._name, self.process_set)
        inherited = getattr(super(), "_step_supports_amp_scaling", False)
        return bool(self.__dict__.get("_step_supports_amp_scaling", inherited))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    @property
    def _active_gradients(self) -> Gradients | None:
        """The gradients that this rank combines with other ranks. None while this rank trains
        alone."""
        gradients = self._gradients
        return gradients if gradients is not None and gradients.is_member() else None

    # The attributes of Horovod's optimizer that programs read.

    @property
    def op(self) -> ReduceOp:
        return self._settings.op

    @property
    def process_set(self) -> Group:
        return self._settings.group

    @property
    def gradient_predivide_factor(self) -> float:
        return self._settings.predivide_factor

    @property
    def sparse_as_dense(self) -> bool:
        return self._settings.sparse_as_dense

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes add to the gradients before a step. Can be set."""
        return self._passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    @property
    def _compression(self) -> Any:
        return self._settings.compression

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self._named_parameters().items()}

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose gradients are combined."""
        return {p for p in parameters_of(self.param_groups) if p.requires_grad}

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """The parameters whose gradients synchronize() would wait for."""
        gradients = self._active_gradients
        return {} if gradients is None else dict.fromkeys(gradients.parameters_in_flight())

    def synchronize(self) -> None:
        """Combine the gradients that backward() has not combined, such as those that this rank
        lacks. Block until all gradients are combined. A second call before the next backward pass
        does nothing."""
        gradients = self._active_gradients
        if gradients is not None and gradients.needs_reduce():
            gradients.reduce()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which step() does not synchronize. Call synchronize() before you
        enter it."""
        self._step_synchronizes = False
        try:
            yield
        finally:
            self._step_synchronizes = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which backward() only adds to the gradients of this rank. Such passes
        do not count. The next pass or step() outside of the context combines the gradients."""
        with contextlib.nullcontext() if self._gradients is None else self._gradients.no_sync():
            yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many backward passes add to the gradients before a step. The number takes effect
        with the next pass. Raise a MisuseError while gradients are in flight."""
        count = checked_passes(passes)
        self._check_nothing_in_flight("set_backward_passes_per_step()")
        self._passes = count
        if self._gradients is not None:
            self._gradients.forget_passes(count)

    def check_not_between_passes(self) -> None:
        """Raise a MisuseError between the backward passes of a step, because the optimizer's state
        does not contain the gradients that the passes have computed so far."""
        if self._gradients is not None and self._gradients.is_between_passes():
            raise MisuseError(
                f"the state is saved between the {self._passes} backward passes of a step, so the "
                "gradients of the passes before would be lost after a failure: call commit(), "
                "save() and check_host_updates() after optimizer.step()"
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        try:
            result = self._step(closure)
        except BaseException:
            self._forget_scaler()
            raise
        self._check_parameters()
        return result

    # The wrapped class already calls the step hooks. With this attribute, torch does not call them
    # a second time.
    step.hooked = True  # type: ignore[attr-defined]

    @outside_dynamo
    def _forget_scaler(self) -> None:
        """Delete the attributes that GradScaler.step() has set for this step. After an error,
        GradScaler does not delete them. Its next step would then multiply the old scale by the new
        one."""
        for name in ("found_inf", "grad_scale"):
            self.__dict__.pop(name, None)

    @outside_dynamo
    def _check_parameters(self) -> None:
        if self._periodic_check is not None:
            self._periodic_check.on_step_end(self._named_parameters, self._describe_options)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        gradients = self._active_gradients
        # Without a closure, pass no argument: the step() of some optimizers takes none.
        if gradients is None:
            return super().step() if closure is None else super().step(closure)
        gradients.check_all_parameters_added(self.param_groups)
        are_combined = closure is None
        if closure is not None:
            closure = self._with_combined_gradients(closure, gradients)
            if isinstance(self, torch.optim.LBFGS):
                closure = self._with_combined_loss(closure)
        elif self._step_synchronizes:
            self._synchronize_for_step(gradients)
        else:
            are_combined = self._skip_reduce(gradients)
        try:
            if closure is not None:
                return super().step(closure)
            gradients.on_step()
            self._check_fused_strides()
            return super().step()
        except BaseException:
            gradients.on_failed_step(are_combined)
            self._has_combined = are_combined
            raise

    def _synchronize_for_step(self, gradients: Gradients) -> None:
        was_combined, self._has_combined = self._has_combined, False
        if gradients.needs_reduce():
            gradients.reduce()
        elif not was_combined:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(); the gradients are not combined a second time",
                stacklevel=4,
            )

    def _check_fused_strides(self) -> None:
        for group in self.param_groups:
            if group.get("fused"):
                check_strides(group["params"])

    def _describe_options(self) -> str:
        """Return the class and the options of the wrapped optimizer, for errors."""
        wrapped_class = type(self).__bases__[-1].__name__
        groups = [
            ", ".join(
                f"{key}={value.tolist() if isinstance(value, torch.Tensor) else value}"
                for key, value in group.items()
                if isinstance(value, _PRINTED_TYPES)
            )
            for group in self.param_groups
        ]
        return f"{wrapped_class}({'; '.join(groups)})"

    def _named_parameters(self) -> dict[str, torch.Tensor]:
        return {
            self._names.get(id(parameter), f"param_groups[{g}]['params'][{p}]"): parameter
            for g, group in enumerate(self.param_groups)
            for p, parameter in enumerate(group["params"])
        }

    def _skip_reduce(self, gradients: Gradients) -> bool:
        """Prepare a step without synchronize(). Return whether the gradients are combined."""
        are_combined = gradients.skip_reduce()
        if not are_combined:
            self._periodic_check = None  # now the parameters of the ranks may differ on purpose
        return are_combined

    def _with_combined_gradients(
        self, closure: Callable[[], Any], gradients: Gradients
    ) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            if not self._step_synchronizes:
                self._skip_reduce(gradients)
            elif gradients.needs_reduce():  # false after synchronize() in the closure
                gradients.reduce()
            gradients.on_step()  # the wrapped step() uses the gradients after this line
            self._check_fused_strides()
            return loss

        return evaluate

    def _with_combined_loss(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that returns the combined loss, which is the same on all ranks. LBFGS
        uses the loss to decide how far to go and how often to call the closure, so the ranks must
        agree on it."""
        op = self.op if self.op in (Sum, Average) else AverageOfPresent

        def evaluate() -> Any:
            loss = closure()
            own_loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
            value = torch.tensor(float(own_loss), dtype=torch.float64, device="cpu")
            name = f"{self._name}.loss"
            allreduce_(value, name=name, op=op, process_set=self.process_set)
            return (
                torch.full_like(own_loss, value.item())
                if isinstance(own_loss, torch.Tensor)
                else value
            )

        return evaluate

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Do what the zero_grad() of the wrapped class does. Raise a MisuseError while gradients
        are in flight."""
        self._check_nothing_in_flight("zero_grad()")
        self._has_combined = False
        if self._gradients is not None:
            self._gradients.restart_step()
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state. Forget the backward passes since the last step, unless all their
        gradients are combined. If backward() has raised an error, first wait until the gradients
        that this rank has sent are combined. Keep the objects `state` and `param_groups`, because
        the wrapped optimizer has them, too, and its learning rate scheduler changes them."""
        if self._gradients is not None:
            self._gradients.forget_passes()
        groups, state = self.param_groups, self.state
        super().load_state_dict(state_dict)
        match_state_strides(self)
        keep_groups_and_state(self, groups, state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._gradients is not None:
            self._gradients.add(parameters_of([param_group]))
        if self._periodic_check is not None:
            self._periodic_check.check_all_again()

    def _check_nothing_in_flight(self, call: str) -> None:
        if self._gradients is not None and self._gradients.is_in_flight():
            raise MisuseError(
                f"{call} was called after backward(), while gradients are in flight: call step() "
                "or synchronize() before"
            )


def keep_groups_and_state(optimizer: torch.optim.Optimizer, groups: list[Any], state: Any) -> None:
    """Copy what the optimizer has loaded into its old objects: `groups`, the old `param_groups`,
    and `state`. Then make these two objects its attributes again."""
    loaded_groups, loaded_state = optimizer.param_groups, optimizer.state
    for group, loaded in zip(groups, loaded_groups, strict=True):
        if loaded is not group:
            group.clear()
            group.update(loaded)
    loaded_groups[:] = groups  # a wrapped optimizer may refer to this list object
    if loaded_state is not state:
        state.clear()
        state.update(loaded_state)
    for name, value in (("param_groups", groups), ("state", state)):
        # If an optimizer wraps another one, the attribute may be a property without a setter.
        with contextlib.suppress(AttributeError):
            setattr(optimizer, name, value)


def match_state_strides(optimizer: torch.optim.Optimizer) -> None:
    """Give the tensors of the state the strides of their parameters, if they have the same shape.
    Fused optimizers read both as flat memory. A tensor that was broadcast is contiguous, so its
    strides may differ."""
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items() if isinstance(entries, dict) else ():
            entries[name] = _with_strides_of(parameter, value)


def _with_strides_of(parameter: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(parameter, torch.Tensor):
        return value
    strides = torch_tensors.permuted_strides(parameter)
    if strides is None or value.shape != parameter.shape:
        return value
    if torch_tensors.permuted_strides(value) == strides:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def check_strides(parameters: Iterable[torch.Tensor]) -> None:
    """Raise CallError if a gradient has other strides than its parameter, because fused optimizers
    read both as flat memory."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or gradient.stride() == parameter.stride():
            continue
        permuted_strides = torch_tensors.permuted_strides
        if permuted_strides(gradient) != permuted_strides(parameter):
            raise CallError(
                f"a parameter of shape {tuple(parameter.shape)} has the strides "
                f"{parameter.stride()} now, and had {gradient.stride()} in the first step of its "
                "optimizer; with fused=True, the two must be the same: make a new "
                "DistributedOptimizer after such a change"
            )


def step_without_combining(optimizer: torch.optim.Optimizer) -> None:
    """Make a step of this rank alone, without combining its gradients."""
    if isinstance(optimizer, AnyDistributedOptimizer):
        super(AnyDistributedOptimizer, optimizer).step()
    else:
        type(optimizer).step(optimizer)


class _DeltaCombiner:
    """Combines the changes that the ranks' steps have made to the parameters. Each parameter is
    combined alone, because Adasum depends on the angle between two tensors."""

    def __init__(
        self, name: OptimizerName, settings: ReductionSettings, names: Mapping[int, str]
    ) -> None:
        """`names` maps the id() of each named parameter to its name."""
        self._name, self._settings, self._names = name, settings, names
        # The ids of the parameters in _paired_parameters, in the order of the optimizer.
        self._parameter_ids: list[int] = []
        self._paired_parameters: list[torch.Tensor] = []
        self._period: Period | None = None  # the period in which the parameters were paired

    @outside_dynamo
    def in_common_order(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters in an order that is the same on all ranks."""
        ids, group = [id(parameter) for parameter in parameters], self._settings.group
        if ids != self._parameter_ids or group.period != self._period:
            name = f"{self._name}.deltas.pairing"
            self._paired_parameters = in_common_order(
                torch_tensors, parameters, self._names, name, group
            )
            self._parameter_ids, self._period = ids, group.period
        return self._paired_parameters

    @outside_dynamo
    def is_overflow_on_any_rank(self, found_inf: torch.Tensor) -> bool:
        """Return whether a GradScaler has found an overflow on any rank."""
        name, group = f"{self._name}.deltas.found_inf", self._settings.group
        return allreduce(found_inf, name=name, op=Max, process_set=group).item() > 0

    @outside_dynamo
    def combine(self, deltas: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not deltas:
            return []
        compression, group = self._settings.compression, self._settings.group
        pairs = [compression.compress(delta) for delta in deltas]
        compressed = [tensor for tensor, _ in pairs]
        handle = grouped_allreduce_async_(
            compressed, name=f"{self._name}.deltas", op=self._settings.op, process_set=group
        )
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(handle.wait(), pairs, strict=True)
        ]


class _AdasumOptimizer(AnyDistributedOptimizer):
    """Makes a step with this rank's own gradients, and combines the changes of the parameters over
    all ranks."""

    _delta_combiner: _DeltaCombiner | None = None  # None if this rank always trains alone
    # Because this is True, a GradScaler calls step() even after an overflow. Before the call, it
    # sets the attributes `found_inf` and `grad_scale`, as for the fused optimizers of torch.
    _step_supports_amp_scaling = True
    found_inf: torch.Tensor | None
    grad_scale: torch.Tensor | None

    @property
    def _active_delta_combiner(self) -> _DeltaCombiner | None:
        """The object that combines the changes of this rank with the changes of other ranks. None
        while this rank trains alone."""
        return None if self.process_set.included() is False else self._delta_combiner

    def synchronize(self) -> None:
        """Do nothing: with Adasum, each rank makes its step with its own gradients."""

    def skip_synchronize(self) -> Any:
        raise MisuseError(
            "with op Adasum step() combines what the ranks have changed, so there is no "
            "skip_synchronize(): clip or scale gradients before step()"
        )

    def _unscale_unless_overflow(self) -> bool:
        """Return whether a GradScaler has found an overflow on any rank. Then all ranks must skip
        this step. If there is no overflow, unscale the gradients, unless unscale_() has already
        unscaled them."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:  # the program, not a GradScaler, has called step()
            return False
        scale = self.grad_scale
        # Reset the two attributes, so that neither the wrapped optimizer nor, after an error, a
        # later step() sees them.
        self.found_inf = self.grad_scale = None
        if (combiner := self._active_delta_combiner) is None:
            has_overflow = found_inf.item() > 0
        else:
            has_overflow = combiner.is_overflow_on_any_rank(found_inf)
        if scale is not None and not has_overflow:
            for parameter in parameters_of(self.param_groups):
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
        return has_overflow

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if self._unscale_unless_overflow():
            return None
        if (combiner := self._active_delta_combiner) is None:
            return super()._step(closure)
        parameters = parameters_of(self.param_groups)
        trained_parameters = combiner.in_common_order([p for p in parameters if p.requires_grad])
        # The wrapped step() also changes frozen parameters that have a gradient, differently on
        # each rank.
        frozen_parameters = [p for p in parameters if not p.requires_grad and p.grad is not None]
        frozen_values = [parameter.detach().clone() for parameter in frozen_parameters]
        values_before = [parameter.detach().clone() for parameter in trained_parameters]
        pairs = list(zip(trained_parameters, values_before, strict=True))
        combined_deltas: list[torch.Tensor] | None = None
        try:
            result = super()._step(closure)
            deltas = [parameter.detach() - before for parameter, before in pairs]
            combined_deltas = combiner.combine(deltas)
        finally:  # after an error, undo this rank's step, or the ranks would drift apart
            for parameter, value in zip(frozen_parameters, frozen_values, strict=True):
                parameter.detach().copy_(value)
            for index, (parameter, before) in enumerate(pairs):
                parameter.detach().copy_(
                    before if combined_deltas is None else before + combined_deltas[index]
                )
        return result
