"""The errors of the JAX frontend. Each case is a call that must fail, with the whole text of its
error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import farandole.jax as hvd
from farandole import core


def cases() -> Iterator[tuple[Callable[[], object], str]]:
    yield from _array_cases()
    yield from _traced_call_cases()
    yield (
        lambda: hvd.DistributedOptimizer(3),
        "optimizer must be an optax.GradientTransformation, such as optax.sgd(0.1); got a int",
    )
    yield (
        lambda: hvd.elastic.JaxState(w=jnp.ones(2 + hvd.rank())).sync(),
        "the state of some ranks has other arrays than that of rank 0:\n"
        "  rank 1   w: float32 [3] (rank 0 has w: float32 [2])\n"
        "Make the state in the same way on all ranks",
    )
    yield (
        _state_with_a_tuple_of_nnx,
        "`train` is a tuple with an object of Flax NNX, but JaxState can change such an object "
        "only if it has a name of its own: write JaxState(model=model, optimizer=optimizer)",
    )
    yield (
        lambda: hvd.broadcast_parameters({"a": 1.0, ("b", "c")[hvd.rank()]: 2.0}),
        "params has other leaves, or another order of them, on some ranks: leaf 2 is\n"
        "  rank 0   `['b']`\n"
        "  rank 1   `['c']`\n"
        "Give all ranks the same keys in the same order",
    )


def _state_with_a_tuple_of_nnx() -> None:
    nnx = SimpleNamespace(Object=type("Object", (), {}))  # Flax takes seconds to import
    with mock.patch.dict(sys.modules, {"flax.nnx": nnx}):
        hvd.elastic.JaxState(train=(nnx.Object(), 3))


def _array_cases() -> Iterator[tuple[Callable[[], object], str]]:
    dtypes = ", ".join(core.dtypes)
    yield lambda: hvd.allreduce("a"), "a jax.Array is needed, not a str"
    yield (
        lambda: hvd.allreduce(np.ones(2, complex)),
        f"complex128 cannot be reduced or sent; these can: {dtypes}",
    )
    yield (
        lambda: hvd.allreduce(np.ones(2, ">f4")),
        "the array has the dtype >f4, whose byte order is not that of this machine: use "
        'array.astype("float32")',
    )
    yield (
        lambda: hvd.broadcast(np.int64(2**40 + 5), 0),
        "the array has the dtype int64 and numbers that do not fit into int32, and JAX would cut "
        "them off: set JAX_ENABLE_X64=1 on all ranks",
    )
    yield (
        lambda: hvd.allreduce(np.int64(2**30), op=hvd.Sum, prescale_factor=4.0),
        "the result has the dtype int64 and numbers that do not fit into int32, and JAX would cut "
        "them off: set JAX_ENABLE_X64=1 on all ranks",
    )
    tpu_array = mock.Mock(spec=jax.Array, dtype=np.dtype("float32"), shape=(2,))
    tpu_array.devices = lambda: [mock.Mock(platform="tpu")]
    yield (
        lambda: hvd.allreduce(tpu_array),
        "the array is on tpu, but calls need arrays on the CPU: set JAX_PLATFORMS=cpu",
    )


def _traced_call_cases() -> Iterator[tuple[Callable[[], object], str]]:
    yield (
        lambda: jax.jit(hvd.broadcast, static_argnums=1)(jnp.ones(2, "complex64"), 0),
        f"complex64 cannot be reduced or sent; these can: {', '.join(core.dtypes)}",
    )
    yield (
        lambda: jax.jit(hvd.allgather)(1.0),
        "allgather needs an array with at least one dimension; this one has none",
    )
    yield (
        lambda: jax.jit(hvd.alltoall)(jnp.ones(3)),
        "inside jit, the first dimension of an alltoall must be a multiple of the number of "
        "members, 2; it is 3",
    )
    yield (
        lambda: jax.jit(lambda x: hvd.alltoall(x, [1, 1]))(jnp.ones(2)),
        "alltoall with splits cannot be used inside jit or another transformation, because the "
        "shape of its result depends on the other ranks: leave out splits, and give all members "
        "the same number of rows",
    )
    yield (
        lambda: jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum))(jnp.ones((2, 3))),
        "an allreduce with op Adasum cannot be used inside vmap, because it would combine all "
        "examples as one array: call it outside of vmap",
    )
    yield (
        lambda: jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max))(1.0),
        "allreduce with op Max has no gradient; Sum and Average have one",
    )
