"""Training that continues from its last commit after a failure: Horovod's hvd.elastic."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from farandole import arguments, elastic, lifecycle
from farandole.elastic import ObjectState, OurError, reset_job, run_fn
from farandole.errors import CallError
from farandole.keras.backend import numpy_of
from farandole.keras.operations import broadcast_variables, build_optimizer
from farandole.objects import broadcast_object

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "Step",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    In an elastic job (`farandole run --min-workers`), the processes that are left form a new group
    and continue from the last commit; new processes join at a later commit. In a job of fixed size,
    run() raises the error if a process is gone.
    """
    return run_fn(func, reset_job, _finder_of_our_error())


class Step(elastic.Step):
    __doc__ = elastic.Step.__doc__

    @staticmethod
    def _our_error(error: Exception) -> Exception:
        return _finder_of_our_error()(error)


def _finder_of_our_error() -> OurError:
    """Return the function that finds the error of a call in an error of the backend."""
    modules = {"tensorflow": "farandole.tensorflow.elastic", "jax": "farandole.jax.failures"}
    name = modules.get(keras.config.backend())
    if name is None:
        return lambda error: error
    found: OurError = importlib.import_module(name).our_error
    return found


class KerasState(ObjectState):
    """Keep the variables of a model and of its optimizer, and any picklable objects as attributes.

    If the model is built and its optimizer is not, the state builds the optimizer with
    model.trainable_variables. To train other variables with the optimizer, too, build the optimizer
    yourself before.

    If the model is not built yet, its variables are first saved by CommitStateCallback, when fit()
    begins, or by the next commit. restore() leaves variables as they are that were never saved.

    Args:
        model: The model.
        optimizer: The optimizer, if it is not that of the model.
        backend: Ignored. Scripts that were written for Horovod pass it.
        objects: Objects, such as `epoch=0`, which become attributes.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **objects: Any
    ) -> None:
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self._values: list[tuple[Any, Any]] = []  # pairs of a variable and its saved value
        super().__init__(broadcast_object, lifecycle.rank, **objects)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in self._values:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the variables and objects of rank 0 as they are now, and save them."""
        broadcast_variables(self._variables(), root_rank=0)
        super().sync()
        self._save_variables()

    def reset(self) -> None:
        self.model.train_function = None  # fit() makes it again, for the ranks of the new job
        if keras.config.backend() == "jax":
            # If something refers to the old function, JAX may still have the compiled program.
            importlib.import_module("jax").clear_caches()

    def save_new_variables(self) -> None:
        """Save the variables that did not exist yet at the last commit."""
        known = {id(variable) for variable, _ in self._values}
        new = [variable for variable in self._variables() if id(variable) not in known]
        self._values += _with_values(new)

    def _variables(self) -> list[Any]:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # during fit(), JAX keeps the values elsewhere
        build_optimizer(self.model, self.optimizer)
        own = self.optimizer.variables if self.optimizer is not None else ()
        return [*self.model.variables, *own]

    def _save_variables(self) -> None:
        self._values = _with_values(self._variables())


def _with_values(variables: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(variable, numpy_of(variable).copy()) for variable in variables]


class CommitStateCallback(keras.callbacks.Callback):
    """Commit the state after every batches_per_commit batches, and at the end of each epoch.

    Args:
        state: The state, such as a KerasState.
        batches_per_commit: The number of batches between two commits. 0: commit at the end of
            each epoch only.

    Raises:
        CallError: `batches_per_commit` is not a whole number from 0 on.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit != 0 and arguments.positive_whole_number(batches_per_commit) is None:
            raise CallError(
                f"batches_per_commit must be a whole number from 0 on; got {batches_per_commit!r}"
            )
        self._state, self._interval, self._remaining = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self._remaining = self._interval
        if isinstance(self._state, KerasState):
            self._state.save_new_variables()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self._remaining = self._interval
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keep the number of the next batch in state.batch. After a restart, the first epoch has only
    the batches that are left: give fit() the remaining data and steps, from state.batch on."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._skipped = state, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._skipped = self._state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.batch = self._skipped + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keep the number of finished epochs in state.epoch. After a restart, fit() must count from 0
    again: do not pass initial_epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._skipped = state, 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._skipped = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.epoch = self._skipped + epoch + 1
