"""The errors of the TensorFlow frontend. Each case is a call that must fail, with the whole text of
its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import tensorflow as tf

import farandole.tensorflow as hvd
from farandole import core, lifecycle
from farandole.tensorflow.ops import farandole_error_of

Case = tuple[Callable[[], object], str]


def cases() -> Iterator[Case]:
    yield from _tensor_cases()
    yield from _gradient_cases()
    yield from _optimizer_cases()
    yield from _variable_cases()


def _tensor_cases() -> Iterator[Case]:
    dtypes = ", ".join(core.dtypes)
    yield (
        lambda: hvd.allreduce("a"),
        f"string cannot be reduced or sent; these can: {dtypes}",
    )
    ragged = [[1], [2, 3]]
    try:
        tf.convert_to_tensor(ragged)
    except ValueError as error:
        yield lambda: hvd.allgather(ragged), f"a tensor is needed, not {ragged!r}: {error}"
    yield (
        lambda: hvd.alltoall(tf.ones(2), tf.constant([1.0, 1.0])),
        "splits must be whole numbers; its dtype is float32",
    )
    for value in (3, []):
        yield (
            lambda value=value: hvd.alltoall(tf.ones(2), value),
            "splits must be a list or tensor of whole numbers, the number of rows for each member; "
            f"got {value!r}",
        )
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    yield (
        lambda: hvd.allreduce(slices, op=hvd.AverageOfPresent),
        "an allreduce of tf.IndexedSlices needs the op Sum or Average; got AverageOfPresent: "
        "convert it to a dense tensor with tf.convert_to_tensor()",
    )
    integer_slices = tf.IndexedSlices(tf.constant([[1]]), tf.constant([0]))
    yield (
        lambda: hvd.allreduce(integer_slices),
        "an allreduce of integer tf.IndexedSlices needs the op Sum and factors of 1: cast the "
        "values, or convert them to a dense tensor with tf.convert_to_tensor()",
    )
    different_slices = tf.IndexedSlices(
        tf.ones([1, 2]), tf.constant([0]), tf.constant([3 + hvd.rank(), 2])
    )
    yield (
        lambda: hvd.allreduce(different_slices),
        "the dense tensors of tf.IndexedSlices have different shapes on the ranks: build the same "
        "model on all ranks; these are the shapes, in the order of the ranks: [[3, 2], [4, 2]]",
    )
    with tf.Graph().as_default():
        yield hvd.join, "join() waits for other ranks: call it outside of tf.function and graphs"


def _gradient_cases() -> Iterator[Case]:
    yield lambda: hvd.DistributedGradientTape(3), "gradtape must be a tf.GradientTape; got 3"
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    yield (
        lambda: hvd.DistributedGradientTape(tape),
        "gradtape is already distributed: pass the tf.GradientTape itself",
    )
    yield (
        lambda: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3]),
        "local_layers must be a layer or a list of layers; got 3",
    )
    head_variables = [tf.Variable([1.0], name=f"head_{i}") for i in range(2)]
    with hvd.DistributedGradientTape(tf.GradientTape()) as of_one_head:
        loss = tf.reduce_sum(head_variables[hvd.rank()])
    difference_error = (
        "the ranks have gradients of different variables, or dense and sparse ones of the same: "
        "compute the same gradients on all ranks, and use zeros where a rank has none"
    )
    yield (
        lambda: of_one_head.gradient(loss, head_variables),
        f"{difference_error}; of variable 0 head_0:0, rank 0 has a dense one, rank 1 has none",
    )
    table = tf.Variable(tf.ones([3, 2]), name="table")
    with hvd.DistributedGradientTape(tf.GradientTape()) as of_rows:
        gradient_source = tf.gather(table, [1]) if hvd.rank() == 0 else table
        loss_of_rows = tf.reduce_sum(gradient_source)
    yield (
        lambda: of_rows.gradient(loss_of_rows, [table]),
        f"{difference_error}; of variable 0 table:0, rank 0 has a sparse one, "
        "rank 1 has a dense one",
    )
    groups = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    number = groups[hvd.rank()].process_set_id
    x = tf.Variable(1.0)
    with tf.GradientTape() as recorded:
        y = hvd.allreduce(x, process_set=groups[hvd.rank()])
    for group in groups:
        hvd.remove_process_set(group)
    yield lambda: recorded.gradient(y, x), f"there is no process set with the number {number}"


def _optimizer_cases() -> Iterator[Case]:
    v1_optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    yield (
        lambda: hvd.DistributedOptimizer(v1_optimizer, op=hvd.Min),
        f"op of an optimizer must be Average or Sum; got {hvd.Min!r}: for another op, combine "
        "the gradients by allreduce(), and use the optimizer itself",
    )
    for value in (3, hvd.DistributedOptimizer(v1_optimizer)):
        yield (
            lambda value=value: hvd.DistributedOptimizer(value),
            "optimizer must be an optimizer of Keras 3 or of tf.compat.v1.train that is not "
            f"distributed yet; got {value!r}",
        )
    optimizer = hvd.DistributedOptimizer(v1_optimizer, backward_passes_per_step=2)
    x, y = tf.Variable(1.0, name="x"), tf.Variable(1.0, name="y")
    optimizer.compute_gradients(lambda: x * 2, [x])
    yield (
        lambda: optimizer.compute_gradients(lambda: y * 2, [y]),
        "with backward_passes_per_step above 1, all passes must have gradients of the same "
        "variables; the first pass had x:0 []; this one has y:0 []",
    )
    with mock.patch.object(lifecycle, "is_elastic", lambda: True):
        yield (
            lambda: hvd.DistributedOptimizer(v1_optimizer, backward_passes_per_step=2),
            "backward_passes_per_step is 2, but in an elastic job, an optimizer of "
            "tf.compat.v1.train cannot add up gradients, because the sums would not return to the "
            "last commit: use an optimizer of Keras 3",
        )
    yield (
        lambda: hvd.elastic.TensorFlowState(batch=0),
        "an eager program has no list of its variables: give them, "
        "hvd.elastic.TensorFlowState(model.variables, …)",
    )
    variables = [tf.Variable(1.0, name=f"x_{i}") for i in range(1 + hvd.rank())]
    yield (
        hvd.elastic.TensorFlowState(variables).sync,
        "the ranks cannot begin with the same variables:\n"
        "  rank 1   variable 1 x_1:0 is float32 () (on rank 0, it is missing)\n"
        "Give TensorFlowState the same variables on all ranks: build the model and its optimizer "
        "before you make the state",
    )


def _variable_cases() -> Iterator[Case]:
    yield (
        lambda: hvd.broadcast_global_variables(0),
        "broadcast_global_variables() is for graphs of TensorFlow 1; call "
        "broadcast_variables(model.variables, root_rank=0) instead",
    )
    yield (
        lambda: hvd.broadcast_variables([3], 0),
        "variables must be a list of variables, such as model.variables; it contains 3",
    )
    assert farandole_error_of(ValueError("of another library")) is None
