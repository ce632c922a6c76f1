"""The operations on TensorFlow tensors, with Horovod's names and arguments.

All members of the process_set must make the same calls in the same order. Calls can be made
eagerly, inside tf.function, and in graphs of TensorFlow 1. An eager call blocks, and raises the
errors of farandole.errors. Inside tf.function and in graphs, TensorFlow raises an error of its own
with the same text: tf.errors.FailedPreconditionError instead of a CallError, and otherwise
tf.errors.AbortedError. If the dense shapes of tf.IndexedSlices differ, the error is
tf.errors.InvalidArgumentError. Calls run on the CPU; TensorFlow copies tensors of other devices.

Calls have gradients. As in Horovod, the gradient of an allgather or a broadcast is the average over
the members, and the gradient of a reducescatter is the number of members times the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole import arguments, calls
from farandole.call_documentation import documented
from farandole.compression import AnyCompressor, NoneCompressor, checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.operations import Allgather, Allreduce, Alltoall, Broadcast, Operation, Reducescatter
from farandole.reduce_op import Average, ReduceOp, reduce_op_of
from farandole.tensorflow import ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.sparse import allreduce_slices


# size waiver: Horovod's arguments
@documented
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Group = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the elementwise reduction of all members' tensors. Each tensor is multiplied by
    prescale_factor, and the result by postscale_factor. An Average of integers is rounded toward
    zero.

    All members give the same shape and dtype. Only Sum, Average and AverageOfPresent have a
    gradient. The tensor may be a tf.IndexedSlices. Then the result has the slices of all members,
    and op must be Sum or Average.

    Example::

        mean = hvd.allreduce(tf.constant([float(hvd.rank())]))
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return allreduce_slices([tensor], operation, compression, name)[0]
    return run(operation, [tensor], name, compression)[0]


# size waiver: Horovod's arguments
@documented
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return the result of an allreduce for each tensor. The dense tensors are sent as one batch,
    and the tf.IndexedSlices as another one. All members must have a tf.IndexedSlices at the same
    places of the list. If the list is empty, nothing is sent, and the result is an empty list."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    if isinstance(tensors, (list, tuple)) and not tensors:
        return []
    tensor_list, base_name = arguments.checked_batch(tensors), arguments.call_name(name)
    sparse_indices = [
        i for i, tensor in enumerate(tensor_list) if isinstance(tensor, tf.IndexedSlices)
    ]
    dense_indices = [i for i in range(len(tensor_list)) if i not in sparse_indices]
    results: dict[int, Any] = {}
    if dense_indices:
        batch = run(operation, [tensor_list[i] for i in dense_indices], name, compression)
        results.update(zip(dense_indices, batch, strict=True))
    if sparse_indices:
        slices = [tensor_list[i] for i in sparse_indices]
        name_of_slices = f"{base_name}.sparse" if base_name else None
        batch = allreduce_slices(slices, operation, compression, name_of_slices)
        results.update(zip(sparse_indices, batch, strict=True))
    return [results[i] for i in range(len(tensor_list))]


@documented
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Group = global_process_set,
) -> Any:
    """Return the tensor of root_rank. All members give the same shape and dtype.

    Example::

        seed = hvd.broadcast(tf.constant([hvd.rank() + 7]), root_rank=0)  # 7 on all ranks
    """
    return run(Broadcast(process_set, root_rank), [tensor], name)[0]


@documented
def grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return, for each tensor of the list, the tensor of root_rank."""
    return run(Broadcast(process_set, root_rank), arguments.checked_batch(tensors), name)


@documented
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Group = global_process_set,
) -> Any:
    """Return all members' tensors, joined along the first dimension in the order of the ranks.

    The tensors have at least one dimension. The first dimension may differ between members. The
    other dimensions and the dtype must be equal.
    """
    return run(Allgather(process_set), [tensor], name)[0]


@documented
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return the result of an allgather for each tensor of the list."""
    return run(Allgather(process_set), arguments.checked_batch(tensors), name)


@documented
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Group = global_process_set,
) -> Any:
    """Send each member a part of the rows, and return the rows that this rank has received, in the
    order of the ranks. With splits, return a pair: the rows, and how many rows came from each
    member (int32)."""
    split_lists = None if splits is None else [splits]
    return _alltoall([tensor], split_lists, name, process_set)[0]


@documented
def grouped_alltoall(
    tensors: Sequence[Any],
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return the result of an alltoall for each tensor of the list."""
    tensor_list = arguments.checked_batch(tensors)
    split_lists = (
        None if splits is None else arguments.checked_batch_splits(splits, len(tensor_list))
    )
    return _alltoall(tensor_list, split_lists, name, process_set)


# size waiver: Horovod's arguments
@documented
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: Group = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce all members' tensors and return this rank's part of the rows. If the rows cannot be
    divided equally, the first members get one row more.

    All members give the same shape, with at least one dimension. Only Sum and Average have a
    gradient.
    """
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return run(operation, [tensor], name, compression)[0]


# size waiver: Horovod's arguments
@documented
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = Average,
    process_set: Group = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Return the result of a reducescatter for each tensor of the list."""
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return run(operation, arguments.checked_batch(tensors), name, compression)


def join() -> Any:
    """Declare that this rank has no more data, and wait until all ranks have called join(): see
    farandole.join(). Return the rank that made the most calls before its join, as an int32 tensor.

    Raises:
        CallError: It is called inside tf.function or while a graph is built.
    """
    if not tf.executing_eagerly():
        raise CallError("join() waits for other ranks: call it outside of tf.function and graphs")
    return tf.constant(calls.join(), tf.int32)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of members of a process set as an int32 scalar. A graph or function reads
    this number again in every run. This also holds for the other functions that end in _op.

    Raises:
        CallError: There is no such process set, or init() was not called.
    """
    return ops.query("size", process_set_id)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is a member of the process set, otherwise 0, as an int32 scalar.

    Raises:
        CallError: There is no such process set, or init() was not called.
    """
    return ops.query("included", process_set_id)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host as an int32 scalar."""
    return ops.query("local_size")


def rank_op(name: str | None = None) -> Any:
    """Return this rank as an int32 scalar."""
    return ops.query("rank")


def local_rank_op(name: str | None = None) -> Any:
    """Return the number of this rank among the ranks on this host as an int32 scalar."""
    return ops.query("local_rank")


def run(
    operation: Operation,
    tensors: Sequence[Any],
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> list[Any]:
    """Run the operation on all tensors, as one batch, in the form that `compression` chooses."""
    compressor = checked_compression(compression)
    inputs = [ops.checked_tensor(tensor) for tensor in tensors]
    if compressor is NoneCompressor:
        return ops.run(operation, inputs, name).tensors
    pairs = [compressor.compress(tensor) for tensor in inputs]
    sent_tensors, contexts = zip(*pairs, strict=True)
    results = ops.run(operation, sent_tensors, name).tensors
    return [
        compressor.decompress(result, context)
        for result, context in zip(results, contexts, strict=True)
    ]


def _alltoall(
    tensors: Sequence[Any], splits: Sequence[Any] | None, name: str | None, process_set: Group
) -> list[Any]:
    inputs = [ops.checked_tensor(tensor) for tensor in tensors]
    split_vectors = (
        [tf.constant([], tf.int64)] * len(inputs)  # an empty vector means equal parts
        if splits is None
        else [_splits_vector(split) for split in splits]
    )
    results = ops.run(Alltoall(process_set, None), inputs, name, split_vectors)
    if splits is None:
        return results.tensors
    counts = [tf.cast(rows, tf.int32) for rows in results.received_rows]
    return list(zip(results.tensors, counts, strict=True))


def _splits_vector(splits: Any) -> Any:
    if tf.is_tensor(splits):
        if splits.dtype.is_integer:
            return tf.cast(splits, tf.int64)
        raise CallError(f"splits must be whole numbers; its dtype is {splits.dtype.name}")
    return tf.constant(arguments.checked_splits(splits), tf.int64)
