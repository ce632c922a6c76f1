"""The TensorFlow operations that call the engine, and their gradients.

The operations are part of TensorFlow programs: of eager calls, of functions made by tf.function,
and of the graphs of TensorFlow 1. A call holds a thread of TensorFlow for at most 1 ms inside
functions, and not at all in graphs (docs/decisions/0068).

TensorFlow runs eager calls, and the operations inside functions, in the order of the program. So
these calls need no names; the engine numbers calls without a name. A graph of TensorFlow 1 has no
order, so each operation in it gets a name when it is made.
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from farandole import arguments, core, errors, lifecycle
from farandole.arrays import check_dtype
from farandole.errors import CallError, FarandoleError
from farandole.group import Group, global_process_set
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Operation,
    Reducescatter,
)
from farandole.reduce_op import ReduceOp

_library = tf.load_op_library(str(Path(core.__file__).with_name("tensorflow_ops.so")))
if not hasattr(_library, "farandole_allreduce"):
    raise ImportError(
        f"farandole.tensorflow cannot add its operations to TensorFlow {tf.__version__}: its "
        "library libtensorflow_framework.so.2 was not found, or lacks functions. Install "
        "tensorflow or tensorflow-cpu 2.16 or newer"
    )

_KINDS = ("allgather", "allreduce", "alltoall", "broadcast", "reducescatter")
_FUNCTIONS = {kind: getattr(_library, f"farandole_{kind}") for kind in _KINDS}
_ANY_JOB = 0
# The errors with which TensorFlow reports a failed call.
FAILED_CALL_ERRORS = (tf.errors.AbortedError, tf.errors.FailedPreconditionError)
# For each graph of TensorFlow 1: how many names generated_name() has made for each `base`.
_name_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
# For each graph of TensorFlow 1 and each name that the user has given: the kind of the first
# operation with this name.
_first_kinds: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


class BatchResults(NamedTuple):
    """The results of the calls of a batch, in the order of the inputs."""

    tensors: list[Any]
    # Allgather and alltoall: how many rows came from each member, as int64 vectors.
    received_rows: list[Any]


def run(
    operation: Operation,
    tensors: Sequence[Any],
    name: str | None,
    splits: Sequence[Any] | None = None,
) -> BatchResults:
    """Run the operation on all tensors, as one batch. `splits` has an int64 vector for each
    tensor, if the operation is an Alltoall."""
    given_name = arguments.call_name(name)
    base_name = _unambiguous_name(given_name, operation.kind) if given_name else generated_name("")
    names = [base_name] if len(tensors) == 1 else arguments.batch_names(base_name, len(tensors))
    return _run(operation, tensors, names, splits, _valid_jobs_of(operation.group))


def _valid_jobs_of(group: Group) -> int:
    """Return in which jobs an operation is valid, because a function may outlive its job. 0 means
    any job. N means only job N. -N means job N, and each later job until init() gets other
    groups."""
    if group is global_process_set:  # the world has the number 0 in every job
        return _ANY_JOB
    return core.job_number() if group.was_added else -core.job_number()


def _run(
    operation: Operation,
    tensors: Sequence[Any],
    names: Sequence[str],
    splits: Sequence[Any] | None,
    job: int,
) -> BatchResults:
    attributes = {
        key: _float64_bits(value) if type(value) is float else value
        for key, value in operation.fields().items()
    }
    is_eager = tf.executing_eagerly()
    inputs: dict[str, Any] = {"tensors": tensors}
    if isinstance(operation, Alltoall):
        inputs["splits"] = splits
    elif isinstance(operation, Allgather):
        attributes["N"] = len(tensors)
    attributes["wait_ms"] = 100 if is_eager else _wait_ms_in_program()
    try:
        results = _FUNCTIONS[operation.kind](**inputs, **attributes, names=names, job=job)
    except FAILED_CALL_ERRORS as error:
        raise farandole_error_of(error) or error from None
    batch_results = (
        BatchResults(*results)
        if isinstance(operation, (Allgather, Alltoall))
        else BatchResults(results, [])
    )
    if not is_eager and not isinstance(operation, (Allreduce, Broadcast)):
        for result, tensor in zip(batch_results.tensors, tensors, strict=True):
            if tensor.shape.rank:
                result.set_shape([None, *tensor.shape[1:]])
    return batch_results


def query(quantity: str, group: int = 0) -> Any:
    """Return the quantity "rank", "size", "local_rank", "local_size" or "included" as an int32
    scalar. A function or graph reads the quantity again in every run."""
    try:
        answer = _library.farandole_query(what=quantity, group=group)
    except FAILED_CALL_ERRORS as error:
        raise farandole_error_of(error) or error from None
    answer.set_shape([])
    return answer


def farandole_error_of(error: BaseException) -> FarandoleError | None:
    """Return the error of a call as an error of farandole.errors. Return None if the error is not
    from a call of farandole."""
    call_error = errors.error_of_failed_call(getattr(error, "message", None) or str(error))
    return RejectedCallError(str(call_error)) if isinstance(call_error, CallError) else call_error


class RejectedCallError(CallError, tf.errors.FailedPreconditionError):
    """A CallError that is also an instance of the TensorFlow error that Horovod raises. So handlers
    for the TensorFlow error catch this error, too."""

    def __init__(self, text: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, text)

    def __reduce__(self) -> Any:  # the inherited method expects other arguments of __init__()
        return RejectedCallError, (self.message,)


def _wait_ms_in_program() -> int:
    """Return for how many ms a thread of TensorFlow makes progress with an operation itself. If the
    operation ends in this time, no other thread must be woken. (For an eager operation, a thread of
    the program waits in any case.)"""
    # The operations of a function run one after another. The operations of a graph run in parallel.
    return 1 if tf.compat.v1.executing_eagerly_outside_functions() else 0


def _unambiguous_name(name: str, kind: str) -> str:
    """Return the name. If an operation of another kind has this name in a graph of TensorFlow 1,
    add the kind to the name. Otherwise the engine would rename the later call
    (docs/decisions/0051). Each rank runs the operations of a graph in a different order, so the
    ranks would rename different calls.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return name
    first_kind = _first_kinds.setdefault(_graph(), {}).setdefault(name, kind)
    return name if kind == first_kind else f"{name} ({kind})"


def _graph() -> Any:
    with tf.init_scope():  # return the outer graph even while tf.function builds a graph
        return tf.compat.v1.get_default_graph()


def generated_name(base: str) -> str:
    """Return a name for an operation that the user has not named. In a graph of TensorFlow 1, the
    name ends with a number, so that no other operation has this name. Operations with another
    `base` do not change the number. Outside of such graphs, `base` itself is enough."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return base
    base = base or "tensorflow"
    counts = _name_counts.setdefault(_graph(), Counter())
    counts[base] += 1
    return f"{base}.{counts[base] - 1}"


@functools.lru_cache(maxsize=64)  # most calls have the same factors, so their bits are kept
def _float64_bits(value: float) -> int:
    """Return the bits of a float64, because attributes of TensorFlow have only float32."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float64_of_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _reduction_of(op: Any) -> tuple[ReduceOp, float, float]:
    factors = (
        _float64_of_bits(op.get_attr("prescale")),
        _float64_of_bits(op.get_attr("postscale")),
    )
    return (ReduceOp(op.get_attr("reduce_op")), *factors)


# Make an Operation from the attributes of a TensorFlow operation; the keys are the types of
# TensorFlow operations.
_OPERATION_MAKERS: dict[str, Callable[[Any, Group], Operation]] = {
    "FarandoleAllgather": lambda op, group: Allgather(group),
    "FarandoleAllreduce": lambda op, group: Allreduce(group, *_reduction_of(op)),
    "FarandoleAlltoall": lambda op, group: Alltoall(group, None),
    "FarandoleBroadcast": lambda op, group: Broadcast(group, op.get_attr("root_rank")),
    "FarandoleReducescatter": lambda op, group: Reducescatter(group, *_reduction_of(op)),
}


class _GradientArrays:
    """Implements farandole.arrays.GradientArrays, also for shapes that are not known yet."""

    has_exact_gradients = False  # they follow Horovod's rules

    def zeros_like(self, array: Any) -> Any:
        return tf.zeros_like(array)

    def padded_with_zeros(self, array: Any, rows: Any) -> Any:
        zeros_shape = [[rows - tf.shape(array)[0]], tf.shape(array)[1:]]
        return tf.concat([array, tf.zeros(tf.concat(zeros_shape, 0), array.dtype)], 0)


def _gradient(op: Any, *gradients: Any) -> list[Any]:
    """Return the gradients of all inputs of an operation, by the rules that all frontends share."""
    names = [name.decode() for name in op.get_attr("names")]
    count = len(names)
    operation = _OPERATION_MAKERS[op.type](op, lifecycle.group_numbered(op.get_attr("group")))
    operation.check_differentiable()
    indices = [i for i in range(count) if op.inputs[i].dtype.is_floating]
    if not indices:
        return [None] * len(op.inputs)
    backward_calls = []
    for i in indices:
        gradient = gradients[i] if gradients[i] is not None else tf.zeros_like(op.outputs[i])
        row_vectors = op.outputs[count:]
        rows = tf.unstack(row_vectors[i], num=operation.group.size()) if row_vectors else []
        shape = tf.shape(op.inputs[i])
        backward_calls.append(
            operation.backward(_GradientArrays(), tf.convert_to_tensor(gradient), shape, rows)
        )
    backward_operation = backward_calls[0].operation
    splits = (
        [op.outputs[count + i] for i in indices]
        if isinstance(backward_operation, Alltoall)
        else None
    )
    results = _run(
        backward_operation,
        [backward_call.array for backward_call in backward_calls],
        [generated_name(arguments.gradient_name(names[i]) or "") for i in indices],
        splits,
        # The gradients of all operations except Allreduce depend on the ranks of this job.
        _valid_jobs_of(operation.group) if isinstance(operation, Allreduce) else core.job_number(),
    ).tensors
    input_gradients: list[Any] = [None] * len(op.inputs)
    for i, backward_call, result in zip(indices, backward_calls, results, strict=True):
        input_gradients[i] = backward_call.finish(result)
        input_gradients[i].set_shape(op.inputs[i].shape)
    return input_gradients


for _type in _OPERATION_MAKERS:
    tf.RegisterGradient(_type)(_gradient)


def checked_tensor(value: Any) -> Any:
    """Return the value as a tensor that the engine can send."""
    try:
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise CallError(f"a tensor is needed, not {value!r}: {error}") from None
    check_dtype(tensor.dtype.name)
    return tensor
