"""Training that continues from its last commit after a failure: Horovod's hvd.elastic."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from farandole import elastic, lifecycle
from farandole.elastic import ObjectState, reset_job, run_fn
from farandole.errors import CallError
from farandole.objects import broadcast_object
from farandole.tensorflow.ops import FAILED_CALL_ERRORS, farandole_error_of
from farandole.tensorflow.variables import broadcast_variables
from farandole.training.variables import check_same_variables

if TYPE_CHECKING:
    from farandole.keras.elastic import KerasState as TensorFlowKerasState

__all__ = ["Step", "TensorFlowKerasState", "TensorFlowState", "run"]

Function = TypeVar("Function", bound=Callable[..., Any])

_ADVICE = (
    "Give TensorFlowState the same variables on all ranks: build the model and its optimizer "
    "before you make the state"
)


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    In an elastic job (`farandole run --min-workers`), the remaining processes form a new group and
    continue from the last commit; new processes join at a later commit. In a job of fixed size,
    run() raises the error if a process is gone.
    """

    return run_fn(func, reset_job, find_cause)


def find_cause(error: Exception) -> Exception:
    """If a call inside tf.function failed and TensorFlow raised `error` because of it, return the
    error of that call. Otherwise, return `error` itself."""
    return (farandole_error_of(error) if isinstance(error, FAILED_CALL_ERRORS) else None) or error


class Step(elastic.Step):
    __doc__ = elastic.Step.__doc__
    _find_cause = staticmethod(find_cause)


class TensorFlowState(ObjectState):
    """Keep variables, and any picklable objects as attributes.

    Args:
        variables: Variables of TensorFlow. None: all global variables of a TensorFlow 1 graph.
        session: The session of a TensorFlow 1 graph; None in eager programs.
        objects: Objects, such as `epoch=0`, which become attributes.

    Raises:
        CallError: There are no variables, and the program is eager. sync() raises this error on all
            ranks if they have different numbers of variables, or variables of different dtypes or
            shapes.
    """

    def __init__(self, variables: Any = None, session: Any = None, **objects: Any) -> None:
        if variables is None and tf.executing_eagerly():
            raise CallError(
                "an eager program has no list of its variables: give them, "
                "hvd.elastic.TensorFlowState(model.variables, …)"
            )
        variable_list = tf.compat.v1.global_variables() if variables is None else variables
        self.variables, self.session = list(variable_list), session
        self._values: list[Any] = []
        self._sync_operation: Any = None
        super().__init__(broadcast_object, lifecycle.rank, **objects)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self.variables, self._values, strict=True):
            if self.session is None:
                variable.assign(value)
            else:
                variable.load(value, self.session)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the current variables and objects of rank 0, and save them."""
        check_same_variables(self.variables, _ADVICE)
        if self.session is None:
            broadcast_variables(self.variables, root_rank=0)
        elif self.variables:
            if self._sync_operation is None:  # add it once, so that the graph does not grow
                self._sync_operation = broadcast_variables(self.variables, root_rank=0)
            try:
                self.session.run(self._sync_operation)
            except FAILED_CALL_ERRORS as error:
                raise farandole_error_of(error) or error from None
        super().sync()
        self._save_variables()

    def _save_variables(self) -> None:
        if self.session is None:
            self._values = [variable.numpy() for variable in self.variables]
        else:
            self._values = self.session.run(self.variables)


def __getattr__(name: str) -> Any:
    if name == "TensorFlowKerasState":  # imports Keras, which other programs do not need
        return importlib.import_module("farandole.keras.elastic").KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
