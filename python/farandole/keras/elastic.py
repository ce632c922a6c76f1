"""Training that continues from its last commit after a failure: Horovod's hvd.elastic."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from farandole import arguments, elastic, lifecycle
from farandole.elastic import CauseFinder, HostsUpdatedInterrupt, ObjectState, reset_job, run_fn
from farandole.errors import CallError
from farandole.keras.backend import drop_compiled_step, numpy_of
from farandole.keras.operations import broadcast_variables
from farandole.keras.optimizer import drop_old_step, local_variables_of
from farandole.keras.variables import build_optimizer, distinct, optimizers_of, variables_of
from farandole.objects import broadcast_object
from farandole.training.variables import check_same_variables

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "Step",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_ADVICE = (
    "Build the model and its optimizers in the same way on all ranks before the training begins: "
    "give the model a keras.Input, or call model.build(input_shape), and call optimizer.build() of "
    "optimizers that compile() does not get"
)


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    In an elastic job (`farandole run --min-workers`), the remaining processes form a new group and
    continue from the last commit; new processes join at a later commit. In a job of fixed size,
    run() raises the error if a process is gone.
    """
    return run_fn(func, reset_job, _cause_finder())


class Step(elastic.Step):
    __doc__ = elastic.Step.__doc__

    @staticmethod
    def _find_cause(error: Exception) -> Exception:
        return _cause_finder()(error)


def _cause_finder() -> CauseFinder:
    """Return the function that converts an error of the backend to the error of the call that
    caused it."""
    modules = {"tensorflow": "farandole.tensorflow.elastic", "jax": "farandole.jax.failures"}
    name = modules.get(keras.config.backend())
    if name is None:
        return lambda error: error
    function: CauseFinder = importlib.import_module(name).find_cause
    return function


class KerasState(ObjectState):
    """Keep the variables of a model and of its optimizers, and any picklable objects as attributes.

    The model must be built before the training begins. If the optimizer of compile() is not built,
    the state builds it with model.trainable_variables. If the optimizer also trains other
    variables, build the optimizer yourself before you make the state. If the model has other
    optimizers, such as d_optimizer and g_optimizer of a GAN, build them yourself, too.

    Variables that are created later are first saved by CommitStateCallback when fit() begins, or by
    the next commit. restore() does not change variables that were never saved.

    A new rank gets all variables of rank 0, but keeps the states of its seed generators, so that
    dropout differs between the ranks. If a rank has received the state before, the local variables
    of its distributed optimizers do not change.

    Args:
        model: The model.
        optimizer: The optimizer, or a list of optimizers that are built. None: all optimizers in
            the attributes of the model, directly or in a list, tuple or dict. A later compile() may
            set another optimizer.
        backend: Ignored. Scripts that were written for Horovod pass it.
        objects: Objects, such as `epoch=0`, which become attributes.

    Raises:
        CallError: A model is not built, or the ranks have different variables. sync() raises this
            error on all ranks.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **objects: Any
    ) -> None:
        self.model, self._optimizer = model, optimizer
        self._restores_on_reset = False  # whether the next reset() calls restore()
        self._has_state = False  # whether sync() has returned
        self._values: list[tuple[Any, Any]] = []  # pairs of a variable and its saved value
        super().__init__(broadcast_object, lifecycle.rank, **objects)
        self._save_variables()

    @property
    def optimizer(self) -> Any:
        given_optimizer = self._optimizer
        return (
            getattr(self.model, "optimizer", None) if given_optimizer is None else given_optimizer
        )

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def save(self) -> None:
        self._save_variables()
        super().save()

    def check_host_updates(self) -> None:
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            # When this error ends fit(), fit() may change variables. For example, with use_ema=True
            # and JAX, it replaces the weights by their averages.
            self.save()
            self._restores_on_reset = True
            raise

    def restore(self) -> None:
        if getattr(self.model, "_jax_state", None) is not None:
            # _jax_state has the arrays of an earlier train_on_batch(). If _jax_state kept these
            # arrays, jax_state_sync() would assign them to the variables.
            self.model._jax_state, self.model._jax_state_synced = None, True
        for variable, value in self._values:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the current variables and objects of rank 0, and save them. The states of
        seed generators do not change. If a rank has received the state before, its local variables
        do not change either."""
        drop_old_step(self.model, self._optimizers())
        variables = self._shared_variables()
        problem = "" if _has_all_variables(self.model) else "the model is not built"
        check_same_variables(variables, _ADVICE, problem)
        local_variables = [
            variable
            for optimizer in self._optimizers()
            for variable in local_variables_of(optimizer, self.model.variables)
        ]
        kept_values = _with_values(local_variables if self._has_state else [])
        # Also broadcast the local variables, because all ranks must make the same calls.
        broadcast_variables(variables, root_rank=0)
        for variable, value in kept_values:
            variable.assign(value)
        super().sync()
        self._save_variables()
        self._has_state = True

    def reset(self) -> None:
        if self._restores_on_reset:
            self._restores_on_reset = False
            self.restore()
        # The compiled step contains the number of ranks of the old job.
        drop_compiled_step(self.model)

    def save_new_variables(self) -> None:
        """Save the variables that did not exist yet at the last commit."""
        saved_ids = {id(variable) for variable, _ in self._values}
        new_variables = [
            variable for variable in self._variables() if id(variable) not in saved_ids
        ]
        self._values += _with_values(new_variables)

    def _optimizers(self) -> list[Any]:
        given_optimizers = self._optimizer
        if given_optimizers is None:
            return optimizers_of(self.model)
        return (
            list(given_optimizers)
            if isinstance(given_optimizers, (list, tuple))
            else [given_optimizers]
        )

    def _shared_variables(self) -> list[Any]:
        if not isinstance(self.optimizer, (list, tuple)):
            build_optimizer(self.model, self.optimizer)
        return variables_of(self.model, self._optimizers())

    def _variables(self) -> list[Any]:
        """Return the shared variables and the states of this rank's seed generators."""
        return distinct([*self._shared_variables(), *self.model.variables])

    def _save_variables(self) -> None:
        self._values = _with_values(self._variables())


def _has_all_variables(model: Any) -> bool:
    """Return whether all variables of the model exist. A layer that does not define build() has no
    variables. A built model does not use those of its layers that are not built."""
    return model.built or all(
        layer.built or type(layer).build is keras.layers.Layer.build
        for layer in model._flatten_layers()
    )


def _with_values(variables: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(variable, numpy_of(variable).copy()) for variable in variables]


class _BatchCallback(keras.callbacks.Callback):
    """Finds out which batches belong to an execution. With steps_per_execution, an execution has
    several batches, and the model calls on_train_batch_end() only after the last of them."""

    # The first batch of the running execution; between two executions, the first batch of the next
    # one.
    _next_batch = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._next_batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call _after_execution(). `batch` is the last batch of the execution; but old versions of
        Keras pass the first batch."""
        first_batch, last_batch = min(self._next_batch, batch), batch
        steps = (self.params or {}).get("steps")
        count = getattr(self.model, "steps_per_execution", 1) or 1
        if batch == first_batch and count > 1 and steps:
            last_batch = int(min(first_batch + count, steps)) - 1
        self._next_batch = last_batch + 1
        self._after_execution(last_batch, last_batch - first_batch + 1)

    def _after_execution(self, last_batch: int, count: int) -> None:
        """Do what the callback does after an execution of `count` batches."""


class _CountingCallback(_BatchCallback):
    """Keeps a number in the state. Before CommitStateCallback commits, it also calls _after_batch()
    or _after_epoch() of this callback, so the order of the callbacks does not matter."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._initial_count = state, 0

    def on_train_begin(self, logs: Any = None) -> None:
        other_callbacks = [
            callback
            for callback in _counting_callbacks(self._state, self.params)
            if callback is not self
        ]
        self._state._counting_callbacks = [*other_callbacks, self]

    def _after_execution(self, last_batch: int, count: int) -> None:
        self._after_batch(last_batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._after_epoch(epoch)

    def _after_batch(self, batch: int) -> None:
        pass

    def _after_epoch(self, epoch: int) -> None:
        pass


def _counting_callbacks(state: Any, params: Any) -> list[_CountingCallback]:
    """Return the counting callbacks of this fit(): those with the same `params`. The callbacks of
    an earlier fit() that was interrupted have other `params`."""
    callbacks: list[_CountingCallback] = getattr(state, "_counting_callbacks", [])
    return [callback for callback in callbacks if callback.params is params]


class CommitStateCallback(_BatchCallback):
    """Commit the state after every batches_per_commit batches, and at the end of each epoch. With
    steps_per_execution, an execution has several batches. The callback then commits only at the end
    of an execution, as soon as at least batches_per_commit batches have passed since the last
    commit.

    If fit() knows the number of batches, the callback does not commit after the last batch of an
    epoch, but only at the end of the epoch. So an epoch that continues after a restart always has
    at least one more batch.

    Args:
        state: The state, such as a KerasState.
        batches_per_commit: The number of batches between two commits. 0: commit at the end of
            each epoch only.

    Raises:
        CallError: `batches_per_commit` is not a whole number, 0 or more.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit != 0 and arguments.positive_whole_number(batches_per_commit) is None:
            raise CallError(
                f"batches_per_commit must be a whole number from 0 on; got {batches_per_commit!r}"
            )
        self._state, self._interval, self._batches_until_commit = (
            state,
            batches_per_commit,
            batches_per_commit,
        )

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches_until_commit = self._interval
        if isinstance(self._state, KerasState):
            self._state.save_new_variables()

    def _after_execution(self, last_batch: int, count: int) -> None:
        self._batches_until_commit -= count
        # Do not commit after the last batch, because on_epoch_end() will commit.
        is_last = last_batch + 1 == (self.params or {}).get("steps")
        if self._interval > 0 and self._batches_until_commit <= 0 and not is_last:
            for callback in _counting_callbacks(self._state, self.params):
                callback._after_batch(last_batch)
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for callback in _counting_callbacks(self._state, self.params):
            callback._after_epoch(epoch)
        self._commit()

    def _commit(self) -> None:
        self._batches_until_commit = self._interval
        self._state.commit()


class UpdateBatchStateCallback(_CountingCallback):
    """Keep the number of the next batch in state.batch. After a restart, first finish the
    interrupted epoch: call fit() for one epoch, with the data and the steps that remain after
    state.batch batches. Then call fit() for the remaining epochs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._initial_count = self._state.batch

    def _after_batch(self, batch: int) -> None:
        self._state.batch = self._initial_count + batch + 1

    def _after_epoch(self, epoch: int) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(_CountingCallback):
    """Keep the number of finished epochs in state.epoch. After a restart, fit() must count from 0
    again: do not pass initial_epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._initial_count = self._state.epoch

    def _after_epoch(self, epoch: int) -> None:
        self._state.epoch = self._initial_count + epoch + 1
