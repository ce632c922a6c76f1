"""The operations on JAX arrays, with Horovod's names and arguments.

All members of the process_set must make the same calls in the same order. A call works on an array
or on a pytree of arrays, such as the gradients of a model; the arrays of a pytree are sent as one
batch. Calls can be made inside jit, grad, vmap, scan, cond and checkpoint, and outside of them.
Outside of jit a call blocks, and raises the errors of farandole.errors. Inside jit, JAX raises a
JaxRuntimeError with the same text when the program waits for a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from farandole import arguments, operations
from farandole.call_documentation import documented
from farandole.compression import AnyCompressor, checked_compression
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.jax import arrays as jax_arrays
from farandole.jax.compression import Compression
from farandole.jax.primitive import TracedCall, bind, is_traced, run_now, wait_for_programs
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Operation,
    Reducescatter,
    return_array_and_rows,
)
from farandole.reduce_op import Average, ReduceOp, reduce_op_of

Tree = TypeVar("Tree")
Splits: TypeAlias = Sequence[int] | jax.Array


# size waiver: Horovod's arguments
@documented
def allreduce(
    tensor: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> Tree:
    """Return the elementwise reduction of all members' arrays. Each array is multiplied by
    prescale_factor, and the result by postscale_factor. An Average of integers is rounded toward
    zero.

    All members give the same shapes and dtypes. Only Sum, Average and AverageOfPresent have a
    gradient.

    Example::

        mean = hvd.allreduce(jnp.array([float(hvd.rank())]))
        gradients = jax.jit(hvd.allreduce)({"w": jnp.ones(3), "b": jnp.ones(1)})
    """
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


# size waiver: Horovod's arguments
@documented
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return the result of an allreduce for each array. The arrays are sent as one batch."""
    operation = Allreduce(process_set, reduce_op_of(op, average), prescale_factor, postscale_factor)
    return _run(operation, list(arguments.checked_batch(tensors)), name, compression)


@documented
def broadcast(
    tensor: Tree,
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Tree:
    """Return the array of root_rank. All members give the same shape and dtype. The array may be a
    key of jax.random, and its dtype may be uint32.

    Example::

        seed = hvd.broadcast(jnp.array([hvd.rank() + 7]), root_rank=0)  # 7 on all ranks
    """
    return _broadcast(Broadcast(process_set, root_rank), tensor, name)


@documented
def grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return, for each array of the list, the array of root_rank."""
    batch = list(arguments.checked_batch(tensors))
    return _broadcast(Broadcast(process_set, root_rank), batch, name)


@documented
def allgather(
    tensor: Tree, name: str | None = None, process_set: Group = global_process_set
) -> Tree:
    """Return all members' arrays, joined along the first dimension in the order of the ranks.

    The arrays have at least one dimension. Outside of jit, the first dimension may differ between
    members; inside jit, it must be equal. The other dimensions and the dtype must be equal.
    """
    return _run(Allgather(process_set), tensor, name)


@documented
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: Group = global_process_set
) -> list[Any]:
    """Return the result of an allgather for each array of the list."""
    return _run(Allgather(process_set), list(arguments.checked_batch(tensors)), name)


@documented
def alltoall(
    tensor: Any,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Any:
    """Send each member a part of the rows, and return the rows that this rank has received, in the
    order of the ranks. With splits, return a pair: the rows, and how many rows came from each
    member (int32).

    Splits can be given outside of jit only. Inside jit, each member gets the same number of rows,
    so the first dimension must be a multiple of the number of members.
    """
    return _alltoall([tensor], None if splits is None else [splits], name, process_set)[0]


@documented
def grouped_alltoall(
    tensors: Sequence[Any],
    splits: Sequence[Splits] | None = None,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> list[Any]:
    """Return the result of an alltoall for each array of the list."""
    array_list = list(arguments.checked_batch(tensors))
    split_lists = (
        None if splits is None else arguments.checked_batch_splits(splits, len(array_list))
    )
    return _alltoall(array_list, split_lists, name, process_set)


# size waiver: Horovod's arguments
@documented
def reducescatter(
    tensor: Tree,
    op: ReduceOp | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
    compression: AnyCompressor = Compression.none,
) -> Tree:
    """Reduce all members' arrays and return this rank's part of the rows. If the rows cannot be
    divided equally, the first members get one row more.

    All members give the same shape, with at least one dimension. Only Sum and Average have a
    gradient.
    """
    op = Average if op is None else op
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run(operation, tensor, name, compression)


# size waiver: Horovod's arguments
@documented
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Group = global_process_set,
    compression: AnyCompressor = Compression.none,
) -> list[Any]:
    """Return the result of a reducescatter for each array of the list."""
    op = Average if op is None else op
    operation = Reducescatter(process_set, op, prescale_factor, postscale_factor)
    return _run(operation, list(arguments.checked_batch(tensors)), name, compression)


def _broadcast(operation: Broadcast, tree: Any, name: str | None) -> Any:
    result = _run(operation, jax.tree.map(jax_arrays.as_signed, tree), name)
    return jax.tree.map(jax_arrays.from_signed, result, tree)


def _run(
    operation: Operation,
    tree: Any,
    name: str | None,
    compression: AnyCompressor = Compression.none,
) -> Any:
    """Run the operation on all arrays of the tree, as one batch."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    compressor = checked_compression(compression)
    pairs = [compressor.compress(_array_of(leaf)) for leaf in leaves]
    sent_arrays, contexts = zip(*pairs, strict=True)
    results = _run_all(operation, sent_arrays, name)
    decompressed_results = [
        compressor.decompress(result, context)
        for result, context in zip(results, contexts, strict=True)
    ]
    return jax.tree.unflatten(structure, decompressed_results)


def _run_all(operation: Operation, inputs: Sequence[Any], name: str | None) -> list[Any]:
    call_name = arguments.call_name(name)
    if is_traced(inputs):
        return bind(
            TracedCall.from_operation(operation, call_name),
            [jnp.asarray(array) for array in inputs],
        )
    return run_now(operation, inputs, name)


def _array_of(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float)):
        return jnp.asarray(leaf)
    jax_arrays.check(leaf)
    return leaf


def _alltoall(
    tensors: Sequence[Any],
    splits: Sequence[Splits] | None,
    name: str | None,
    process_set: Group,
) -> list[Any]:
    if splits is None:
        return _run(Alltoall(process_set, None), list(tensors), name)
    inputs = [_array_of(tensor) for tensor in tensors]
    if is_traced((*inputs, *splits)):
        raise CallError(
            "alltoall with splits cannot be used inside jit or another transformation, because "
            "the shape of its result depends on the other ranks: leave out splits, and give all "
            "members the same number of rows"
        )
    wait_for_programs()
    batch = [Alltoall(process_set, split) for split in splits]
    results = operations.start_batch(
        jax_arrays, batch, inputs, name, return_array_and_rows, blocking=True
    ).wait()
    return [(rows, jnp.asarray(counts, jnp.int32)) for rows, counts in results]
