"""The allreduce of tf.IndexedSlices: gather the slices of all ranks.

The result may have an index several times. Whoever uses it adds up these slices, as for any
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
    """Return the reduction of each tf.IndexedSlices over all members. Two allgathers for each, in
    one batch, send its indices and its values."""
    op = checked_op(operation.op)
    if op is AverageOfPresent:
        raise CallError(
            "an allreduce of tf.IndexedSlices needs the op Sum or Average; got AverageOfPresent: "
            "convert it to a dense tensor with tf.convert_to_tensor()"
        )
    compressor = checked_compression(compression)
    pairs = [compressor.compress(ops.checked_tensor(part.values)) for part in slices]
    sent = [ops.checked_tensor(part.indices) for part in slices]
    sent += [values for values, _ in pairs]
    gathered = ops.run(Allgather(operation.group), sent, name).tensors
    factor = operation.prescale * operation.postscale
    results = []
    for i, (part, (_, context)) in enumerate(zip(slices, pairs, strict=True)):
        values = compressor.decompress(gathered[len(slices) + i], context)
        if factor != 1:
            values *= tf.cast(factor, values.dtype)
        if op is Average:
            members = ops.query("size", arguments.group_number(operation.group))
            values /= tf.cast(members, values.dtype)
        results.append(tf.IndexedSlices(values, gathered[i], part.dense_shape))
    return results
