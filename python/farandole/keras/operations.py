"""Operations on values, and on the variables of models, outside of compiled programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from farandole import numpy as numpy_arrays
from farandole.call_documentation import documented
from farandole.compression import AnyCompressor, NoneCompressor, checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.keras.backend import as_signed, numpy_of, run_on_numpy
from farandole.keras.variables import variables_of
from farandole.operations import Allgather, Allreduce, Broadcast, Operation, Reducescatter
from farandole.reduce_op import Average, ReduceOp, reduce_op_of
from farandole.training import parameter_check
from farandole.training.variables import checked_variables, numbered_names

_ADVICE = (
    "Give all ranks the same values: add hvd.callbacks.BroadcastGlobalVariablesCallback(0) to "
    "fit(), or call hvd.broadcast_variables(model.weights, root_rank=0)"
)


# size waiver: Horovod's arguments
@documented
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: AnyCompressor = NoneCompressor,
    process_set: Group = global_process_set,
) -> Any:
    """Return the elementwise reduction of all members' values, as a NumPy array. For a tensor or
    variable of TensorFlow, return a tensor of the same dtype.

    Example::

        mean = hvd.allreduce(float(loss))
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    compressor = checked_compression(compression)
    if compressor is NoneCompressor:
        return _run(operation, value, name)
    sent_tensor, context = compressor.compress(keras.ops.convert_to_tensor(value))
    result = run_on_numpy(operation, [numpy_of(sent_tensor)], name)[0]
    decompressed = compressor.decompress(keras.ops.convert_to_tensor(result), context)
    return decompressed if _is_of_tensorflow(value) else numpy_of(decompressed)


@documented
def allgather(value: Any, name: str | None = None, process_set: Group = global_process_set) -> Any:
    """Return all members' values, joined along the first dimension in the order of the ranks. The
    first dimension may differ between members. The result is a NumPy array; for a tensor or
    variable of TensorFlow, it is a tensor."""
    operation, array = Allgather(process_set), numpy_of(value)
    if array.dtype.name != "bfloat16":
        return _run(operation, value, name)
    # NumPy cannot read results of this dtype from the engine's memory, so the bits are sent as
    # integers.
    result = run_on_numpy(operation, [array.view(np.int16)], name)[0].view(array.dtype)
    return keras.ops.convert_to_tensor(result) if _is_of_tensorflow(value) else result


@documented
def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Any:
    """Return the value of root_rank. The result is a NumPy array; for a tensor or variable of
    TensorFlow, it is a tensor."""
    return _run(Broadcast(process_set, root_rank), value, name)


@documented
def reducescatter(
    value: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
) -> Any:
    """Reduce all members' values and return this rank's part of the rows. The result is a NumPy
    array; for a tensor or variable of TensorFlow, it is a tensor."""
    return _run(Reducescatter(process_set, op), value, name)


def _run(operation: Operation, value: Any, name: str | None) -> Any:
    result = run_on_numpy(operation, [numpy_of(value)], name)[0]
    return keras.ops.convert_to_tensor(result) if _is_of_tensorflow(value) else result


def _is_of_tensorflow(value: Any) -> bool:
    return keras.config.backend() == "tensorflow" and bool(keras.ops.is_tensor(value))


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Group = global_process_set
) -> None:
    """Give the variables the values of root_rank, in one batch.

    Args:
        variables: Variables of Keras, such as model.weights, the same on all members. Do not pass
            model.variables: it also has the states of seed generators, which should differ between
            the members, because dropout uses them.
        root_rank: The rank, counted in the world, that sends its values to all members.
        process_set: The group; by default all ranks.

    Raises:
        CallError: The members give different shapes or dtypes, or a value is not a variable.
        GroupLostError: A member has left or died.
    """
    variable_list = checked_variables(variables)
    if not variable_list:
        return
    values = [numpy_of(variable) for variable in variable_list]
    operation = Broadcast(process_set, root_rank)
    results = run_on_numpy(operation, [as_signed(value) for value in values], "variables")
    for variable, value, result in zip(variable_list, values, results, strict=True):
        variable.assign(result.view(value.dtype))


def broadcast_global_variables(root_rank: int) -> None:
    """Raise CallError, because Keras 3 keeps no list of all variables. Scripts that were written
    for Horovod may call it."""
    raise CallError(
        "broadcast_global_variables() has no meaning in Keras 3, which keeps no list of all "
        "variables: add hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) to fit(), or "
        "call hvd.broadcast_variables(model.weights, root_rank)"
    )


def check_parameters(
    params: Any, name: str | None = None, *, process_set: Group = global_process_set
) -> None:
    """Raise CallError on all ranks, with the same text, if their variables differ.

    The text names the first variable that differs, and the ranks. The call blocks until all
    members have made it. If the variables are equal, the ranks exchange only 32 bytes. The
    comparison is bit by bit.

    Args:
        params: A model, or variables such as model.weights. A model means its weights and the
            variables of its optimizers, without the states of seed generators.
        name: The name of the call. If it is None, the name is `check_parameters`.
        process_set: The group.
    """
    variable_list = variables_of(params) if isinstance(params, keras.Model) else list(params)
    named_arrays = list(
        zip(numbered_names(variable_list), map(numpy_of, variable_list), strict=True)
    )
    parameter_check.check(numpy_arrays, named_arrays, process_set, name, advice=_ADVICE)
