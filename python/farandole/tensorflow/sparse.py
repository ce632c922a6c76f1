"""The allreduce of tf.IndexedSlices: gather the slices of all ranks.

The result may have an index several times. The consumer adds up such slices, as for any
tf.IndexedSlices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole import arguments
from farandole.compression import AnyCompressor
from farandole.compression import checked as checked_compression
from farandole.errors import CallError
from farandole.operations import Allgather, Allreduce
from farandole.reduce_op import Average, AverageOfPresent
from farandole.sparse_rows import checked_op
from farandole.tensorflow import ops


def allreduce_slices(
    slices: Sequence[Any], operation: Allreduce, compression: AnyCompressor, name: str | None
) -> list[Any]:
    """Return the reduction of each tf.IndexedSlices over all members. For each of them, two
    allgathers send the indices and the values. Another allgather sends the shapes of the dense
    tensors, which must be the same on all members. All allgathers are one batch."""
    op = checked_op(operation.op)
    if op is AverageOfPresent:
        raise CallError(
            "an allreduce of tf.IndexedSlices needs the op Sum or Average; got AverageOfPresent: "
            "convert it to a dense tensor with tf.convert_to_tensor()"
        )
    factor = operation.prescale * operation.postscale
    are_floats = all(part.values.dtype.is_floating for part in slices)
    if not are_floats and (op is Average or factor != 1):
        raise CallError(
            "an allreduce of integer tf.IndexedSlices needs the op Sum and factors of 1: cast the "
            "values, or convert them to a dense tensor with tf.convert_to_tensor()"
        )
    compressor = checked_compression(compression)
    pairs = [compressor.compress(ops.checked_tensor(part.values)) for part in slices]
    sent = [ops.checked_tensor(part.indices) for part in slices]
    sent += [values for values, _ in pairs]
    own = tf.concat([_dense_shape(part) for part in slices], 0)[tf.newaxis]
    *gathered, shapes = ops.run(Allgather(operation.group), [*sent, own], name).tensors
    checks = _check_shapes(own, shapes)
    results = []
    for i, (part, (_, context)) in enumerate(zip(slices, pairs, strict=True)):
        with tf.control_dependencies(checks):
            values = tf.identity(gathered[len(slices) + i])
        values = compressor.decompress(values, context)
        if factor != 1:
            values *= tf.cast(factor, values.dtype)
        if op is Average:
            members = ops.query("size", arguments.group_number(operation.group))
            values /= tf.cast(members, values.dtype)
        results.append(tf.IndexedSlices(values, gathered[i], part.dense_shape))
    return results


def _dense_shape(part: Any) -> Any:
    """Return the shape of the dense tensor as an int64 vector; [-1] if it is not known."""
    return (
        tf.constant([-1], tf.int64)
        if part.dense_shape is None
        else tf.cast(part.dense_shape, tf.int64)
    )


def _check_shapes(own: Any, shapes: Any) -> list[Any]:
    """Check that all members have the same shapes. In a function or graph, return operations that
    do it."""
    text = (
        "the dense tensors of tf.IndexedSlices have different shapes on the ranks: build the same "
        "model on all ranks"
    )
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(tf.reduce_all(tf.equal(shapes, own)), [text, shapes])]
    if (shapes.numpy() != own.numpy()).any():
        raise CallError(
            f"{text}; these are the shapes, in the order of the ranks: {shapes.numpy().tolist()}"
        )
    return []
