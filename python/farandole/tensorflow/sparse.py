"""The allreduce of tf.IndexedSlices: gather the slices of all ranks.

The result may have an index several times. The consumer adds up such slices, as for any
tf.IndexedSlices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole import arguments
from farandole.compression import AnyCompressor, checked_compression
from farandole.errors import CallError
from farandole.operations import Allgather, Allreduce
from farandole.reduce_op import Average, AverageOfPresent
from farandole.sparse_rows import checked_sparse_op
from farandole.tensorflow import ops


def allreduce_slices(
    slices: Sequence[Any], operation: Allreduce, compression: AnyCompressor, name: str | None
) -> list[Any]:
    """Return the reduction of each tf.IndexedSlices over all members. For each of them, two
    allgathers send the indices and the values. Another allgather sends the shapes of the dense
    tensors, which must be the same on all members. All allgathers are one batch."""
    op = checked_sparse_op(operation.op)
    if op is AverageOfPresent:
        raise CallError(
            "an allreduce of tf.IndexedSlices needs the op Sum or Average; got AverageOfPresent: "
            "convert it to a dense tensor with tf.convert_to_tensor()"
        )
    factor = operation.prescale * operation.postscale
    are_floats = all(tensor.values.dtype.is_floating for tensor in slices)
    if not are_floats and (op is Average or factor != 1):
        raise CallError(
            "an allreduce of integer tf.IndexedSlices needs the op Sum and factors of 1: cast the "
            "values, or convert them to a dense tensor with tf.convert_to_tensor()"
        )
    compressor = checked_compression(compression)
    pairs = [compressor.compress(ops.checked_tensor(tensor.values)) for tensor in slices]
    sent_tensors = [ops.checked_tensor(tensor.indices) for tensor in slices]
    sent_tensors += [values for values, _ in pairs]
    own_shapes = tf.concat([_dense_shape(tensor) for tensor in slices], 0)[tf.newaxis]
    *gathered_tensors, shapes = ops.run(
        Allgather(operation.group), [*sent_tensors, own_shapes], name
    ).tensors
    checks = _check_shapes(own_shapes, shapes)
    results = []
    for i, (tensor, (_, context)) in enumerate(zip(slices, pairs, strict=True)):
        with tf.control_dependencies(checks):
            values = tf.identity(gathered_tensors[len(slices) + i])
        values = compressor.decompress(values, context)
        if factor != 1:
            values *= tf.cast(factor, values.dtype)
        if op is Average:
            member_count = ops.query("size", arguments.group_number(operation.group))
            values /= tf.cast(member_count, values.dtype)
        results.append(tf.IndexedSlices(values, gathered_tensors[i], tensor.dense_shape))
    return results


def _dense_shape(tensor: Any) -> Any:
    """Return the shape of the dense tensor as an int64 vector; [-1] if it is not known."""
    return (
        tf.constant([-1], tf.int64)
        if tensor.dense_shape is None
        else tf.cast(tensor.dense_shape, tf.int64)
    )


def _check_shapes(own_shapes: Any, shapes: Any) -> list[Any]:
    """Check that all members have the same shapes. In a function or graph, return operations that
    check this."""
    text = (
        "the dense tensors of tf.IndexedSlices have different shapes on the ranks: build the same "
        "model on all ranks"
    )
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(tf.reduce_all(tf.equal(shapes, own_shapes)), [text, shapes])]
    if (shapes.numpy() != own_shapes.numpy()).any():
        raise CallError(
            f"{text}; these are the shapes, in the order of the ranks: {shapes.numpy().tolist()}"
        )
    return []
