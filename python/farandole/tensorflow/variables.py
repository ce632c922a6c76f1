"""Give all ranks the same variables, and check that the variables are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole import numpy as numpy_arrays
from farandole.arrays import SIGNED_DTYPES
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.tensorflow import ops
from farandole.tensorflow.operations import grouped_broadcast
from farandole.training import parameter_check
from farandole.training.variables import checked_variables, numbered_names

_ADVICE = (
    "Give all ranks the same values: hvd.broadcast_variables(model.variables, root_rank=0) after "
    "the model is built and after a checkpoint is loaded"
)


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: Group = global_process_set,
    inplace: bool = False,
) -> Any:
    """Give the variables the values of root_rank, in one batch.

    Args:
        variables: Variables of TensorFlow or of Keras, the same on all members.
        root_rank: The rank, counted in the world, that sends its values to all members.
        process_set: The group; by default all ranks.
        inplace: Ignored. Scripts that were written for Horovod pass it.

    Returns:
        In a graph of TensorFlow 1, the operation to run. Otherwise None, also inside tf.function.

    Raises:
        CallError: The members give different shapes or dtypes, or a value is not a variable.
        GroupLostError: A member has left or died.
    """
    assignments = broadcast_(variables, root_rank, process_set=process_set)
    has_no_graph = tf.compat.v1.executing_eagerly_outside_functions()
    return None if has_no_graph else tf.group(*assignments)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Give the variables the values of root_rank, in one batch, and return the results of their
    assign(). The arguments are those of broadcast_variables(); `name` is the name of the call."""
    variable_list = checked_variables(variables)
    if not variable_list:
        return []
    values = [_as_signed(tf.convert_to_tensor(variable)) for variable in variable_list]
    name = name or ops.generated_name("variables")
    results = grouped_broadcast(values, root_rank, name, process_set)
    return [
        variable.assign(_from_signed(result, variable))
        for variable, result in zip(variable_list, results, strict=True)
    ]


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that gives all variables of a TensorFlow 1 graph the values of root_rank.

    Raises:
        CallError: TensorFlow runs eagerly, so there are no global variables.
    """
    if tf.executing_eagerly():
        raise CallError(
            "broadcast_global_variables() is for graphs of TensorFlow 1; call "
            "broadcast_variables(model.variables, root_rank=0) instead"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Give all variables of a TensorFlow 1 graph the values of root_rank when a session begins.

    Args:
        root_rank: The rank that sends its values to all ranks.
        device: Ignored. Scripts that were written for Horovod pass it.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank, self._graph, self._operation = root_rank, None, None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self._graph is not graph:  # a hook may be used in several graphs
            self._graph, self._operation = graph, broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._operation is not None:
            session.run(self._operation)


def check_parameters(
    params: Any, name: str | None = None, *, process_set: Group = global_process_set
) -> None:
    """Raise CallError on all ranks, with the same text, if their parameters differ.

    The text names the first parameter that differs, and the ranks. The call blocks until all
    members have made it. If the parameters are equal, the ranks exchange only 32 bytes. The
    comparison is bit by bit.

    Args:
        params: Variables or tensors, such as model.variables, which are compared in their order. Or
            a dict from names to variables or tensors, which are compared by name.
        name: The name of the call. If it is None, the name is `check_parameters`.
        process_set: The group.
    """
    if isinstance(params, dict):
        named_arrays = [(key, _numpy_of(value)) for key, value in params.items()]
    else:
        variable_list = list(params) if isinstance(params, Iterable) else [params]
        named_arrays = list(
            zip(numbered_names(variable_list), map(_numpy_of, variable_list), strict=True)
        )
    parameter_check.check(numpy_arrays, named_arrays, process_set, name, advice=_ADVICE)


def _numpy_of(value: Any) -> Any:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _as_signed(value: Any) -> Any:
    """Return an array of uint32 or uint64 as signed integers with the same bits, which the engine
    can send. Return any other value unchanged."""
    dtype = SIGNED_DTYPES.get(value.dtype.name)
    return value if dtype is None else tf.bitcast(value, tf.as_dtype(dtype))


def _from_signed(result: Any, variable: Any) -> Any:
    dtype = tf.as_dtype(variable.dtype)
    return tf.bitcast(result, dtype) if dtype.name in SIGNED_DTYPES else result
