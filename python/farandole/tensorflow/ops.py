"""The TensorFlow operations that call the engine, and their gradients.

The operations are part of TensorFlow programs: of eager calls, of functions made by tf.function,
and of the graphs of TensorFlow 1. A call holds a thread of TensorFlow for at most 1 ms inside
functions, and not at all in graphs (docs/decisions/0068).

TensorFlow runs eager calls, and the operations inside functions, in the order of the program. So
their names may be empty; the engine numbers them. A graph of TensorFlow 1 has no order, so each
operation in it gets a name when it is made.
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
FAILURES = (tf.errors.AbortedError, tf.errors.FailedPreconditionError)
# For each graph of TensorFlow 1: how many operations have a name with a certain beginning, by that
# beginning.
_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
# For each graph of TensorFlow 1: the kind of the first operation with a name of the user, by name.
_first_kinds: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


class Results(NamedTuple):
    """The results of the calls of a batch, in the order of the inputs."""

    tensors: list[Any]
    # Allgather and alltoall: how many rows came from each member, as int64 vectors.
    received_rows: list[Any]


def run(
    operation: Operation,
    tensors: Sequence[Any],
    name: str | None,
    splits: Sequence[Any] | None = None,
) -> Results:
    """Run the operation on all tensors, as one batch. `splits` has an int64 vector for each
    tensor, if the operation is an Alltoall."""
    given = arguments.call_name(name)
    text = _unlike_other_kinds(given, operation.kind) if given else name_of_our_own("")
    names = [text] if len(tensors) == 1 else arguments.batch_names(text, len(tensors))
    return _run(operation, tensors, names, splits, _job_of(operation.group))


def _job_of(group: Group) -> int:
    """Return for which jobs an operation is made, because a function may outlive its job: N for job
    N only, -N for job N and later ones as long as init() gets the same groups."""
    if group is global_process_set:  # its number is the same in every job
        return _ANY_JOB
    return core.job_number() if group.was_added else -core.job_number()


def _run(
    operation: Operation,
    tensors: Sequence[Any],
    names: Sequence[str],
    splits: Sequence[Any] | None,
    job: int,
) -> Results:
    attributes = {
        key: _bits(value) if type(value) is float else value
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
    except FAILURES as error:
        raise converted(error) or error from None
    found = (
        Results(*results) if isinstance(operation, (Allgather, Alltoall)) else Results(results, [])
    )
    if not is_eager and not isinstance(operation, (Allreduce, Broadcast)):
        for result, tensor in zip(found.tensors, tensors, strict=True):
            if tensor.shape.rank:
                result.set_shape([None, *tensor.shape[1:]])
    return found


def query(what: str, group: int = 0) -> Any:
    """Return an int32 scalar, which a function or graph reads again in every run: "rank", "size",
    "local_rank", "local_size" or "included"."""
    try:
        answer = _library.farandole_query(what=what, group=group)
    except FAILURES as error:
        raise converted(error) or error from None
    answer.set_shape([])
    return answer


def converted(error: BaseException) -> FarandoleError | None:
    """Return the error of a call as an error of farandole.errors. Return None if the error is not
    from a call of farandole."""
    found = errors.of_failed_call(getattr(error, "message", None) or str(error))
    return RejectedCallError(str(found)) if isinstance(found, CallError) else found


class RejectedCallError(CallError, tf.errors.FailedPreconditionError):
    """A CallError that handlers for Horovod's error of TensorFlow catch, too."""

    def __init__(self, text: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, text)

    def __reduce__(self) -> Any:  # TensorFlow's own expects other arguments of __init__()
        return RejectedCallError, (self.message,)


def _wait_ms_in_program() -> int:
    """Return how long a thread of TensorFlow makes progress with an operation, which saves waking
    another thread. (For an eager operation, a thread of the program waits in any case.)"""
    # The operations of a function run one after another. The operations of a graph run in parallel.
    return 1 if tf.compat.v1.executing_eagerly_outside_functions() else 0


def _unlike_other_kinds(name: str, kind: str) -> str:
    """Return another name if operations of two kinds have this name in a graph of TensorFlow 1. The
    engine would give another name to the later call (docs/decisions/0051), but the operations of a
    graph run in a different order on each rank."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return name
    first = _first_kinds.setdefault(_graph(), {}).setdefault(name, kind)
    return name if kind == first else f"{name} ({kind})"


def _graph() -> Any:
    with tf.init_scope():  # leaves functions that are inside the graph
        return tf.compat.v1.get_default_graph()


def name_of_our_own(base: str) -> str:
    """Return a name for an operation that the user has not named. In a graph of TensorFlow 1, the
    name ends with a number, so that no other operation has this name. Operations with another
    `base` do not change the number. Outside of such graphs, `base` itself is enough."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return base
    base = base or "tensorflow"
    counts = _counts.setdefault(_graph(), Counter())
    counts[base] += 1
    return f"{base}.{counts[base] - 1}"


@functools.lru_cache(maxsize=64)  # most calls have the same factors
def _bits(value: float) -> int:
    """Return the bits of a float64, because attributes of TensorFlow have only float32."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _reduction(op: Any) -> tuple[ReduceOp, float, float]:
    scales = (_float(op.get_attr("prescale")), _float(op.get_attr("postscale")))
    return (ReduceOp(op.get_attr("reduce_op")), *scales)


# How to make an operation from its attributes in a program.
_MAKERS: dict[str, Callable[[Any, Group], Operation]] = {
    "FarandoleAllgather": lambda op, group: Allgather(group),
    "FarandoleAllreduce": lambda op, group: Allreduce(group, *_reduction(op)),
    "FarandoleAlltoall": lambda op, group: Alltoall(group, None),
    "FarandoleBroadcast": lambda op, group: Broadcast(group, op.get_attr("root_rank")),
    "FarandoleReducescatter": lambda op, group: Reducescatter(group, *_reduction(op)),
}


class _GradientArrays:
    """Implements farandole.arrays.GradientArrays, also for shapes that are not known yet."""

    def zeros_like(self, array: Any) -> Any:
        return tf.zeros_like(array)

    def extended(self, array: Any, rows: Any) -> Any:
        rest = [[rows - tf.shape(array)[0]], tf.shape(array)[1:]]
        return tf.concat([array, tf.zeros(tf.concat(rest, 0), array.dtype)], 0)


def _gradient(op: Any, *gradients: Any) -> list[Any]:
    """Return the gradients of all inputs of an operation, by the rules that all frontends share."""
    names = [name.decode() for name in op.get_attr("names")]
    count = len(names)
    operation = _MAKERS[op.type](op, lifecycle.group_numbered(op.get_attr("group")))
    operation.check_linear()
    places = [i for i in range(count) if op.inputs[i].dtype.is_floating]
    if not places:
        return [None] * len(op.inputs)
    steps = []
    for i in places:
        given = gradients[i] if gradients[i] is not None else tf.zeros_like(op.outputs[i])
        received = op.outputs[count:]
        rows = tf.unstack(received[i], num=operation.group.size()) if received else []
        shape = tf.shape(op.inputs[i])
        steps.append(
            operation.backward(_GradientArrays(), tf.convert_to_tensor(given), shape, rows)
        )
    backward = steps[0].operation
    splits = [op.outputs[count + i] for i in places] if isinstance(backward, Alltoall) else None
    results = _run(
        backward,
        [step.array for step in steps],
        [name_of_our_own(arguments.gradient_name(names[i]) or "") for i in places],
        splits,
        # The rules of the other operations have used the ranks of this job.
        _job_of(operation.group) if isinstance(operation, Allreduce) else core.job_number(),
    ).tensors
    found: list[Any] = [None] * len(op.inputs)
    for i, step, result in zip(places, steps, results, strict=True):
        found[i] = step.finish(result)
        found[i].set_shape(op.inputs[i].shape)
    return found


for _type in _MAKERS:
    tf.RegisterGradient(_type)(_gradient)


def checked_tensor(value: Any) -> Any:
    """Return the value as a tensor that the engine can send."""
    try:
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise CallError(f"a tensor is needed, not {value!r}: {error}") from None
    check_dtype(tensor.dtype.name)
    return tensor
