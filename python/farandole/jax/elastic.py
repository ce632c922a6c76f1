"""Training that continues from its last commit after a failure: hvd.elastic."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from farandole import core, elastic, lifecycle
from farandole.arrays import SIGNED_DTYPES
from farandole.comparison import gather_error_texts, table
from farandole.elastic import HostsUpdatedInterrupt, ObjectState, State, reset_job, run_fn
from farandole.errors import CallError
from farandole.group import global_process_set
from farandole.jax import arrays as jax_arrays
from farandole.jax.failures import find_cause
from farandole.jax.operations import grouped_broadcast
from farandole.jax.primitive import wait_for_programs
from farandole.objects import broadcast_object

__all__ = ["HostsUpdatedInterrupt", "JaxState", "ObjectState", "State", "Step", "run"]

Function = TypeVar("Function", bound=Callable[..., Any])


def run(func: Function) -> Function:
    """Decorate the training function func(state, ...) so that it survives failures: see
    farandole.elastic.run_fn.

    In an elastic job (`farandole run --min-workers`), the remaining processes form a new group and
    continue from the last commit; new processes join at a later commit. In a job of fixed size,
    run() raises the error if a process is gone.
    """
    return run_fn(func, reset_job, find_cause)


class Step(elastic.Step):
    __doc__ = elastic.Step.__doc__
    _find_cause = staticmethod(find_cause)


class JaxState(State):
    """Keep pytrees of arrays, and any picklable objects, as attributes:
    `JaxState(params=params, opt_state=opt_state, batch=0)`.

    save() waits until the arrays are computed, and raises the error if a computation fails. It
    copies everything except jax.Array objects, which never change. If the program donates a saved
    array, JAX copies the array, so donation saves no memory here.

    sync() sends the exact bits of arrays, and everything else as pickled objects. A value that
    contains a jax.Array must be a pytree with the same paths, shapes and dtypes on all ranks. Each
    rank keeps its own containers and functions. A value without arrays may differ between the
    ranks; all ranks get the value of rank 0.

    An object of Flax NNX, such as a model, an optimizer or a metric, stays the same object. Its
    variables are saved, and restore() and sync() change them in place. Give each such object a name
    of its own.

    After the job has been formed again, JAX traces all programs again, because they may contain the
    number of ranks. It then compiles only the programs that have changed.

    Args:
        values: The values by name. They may be assigned again later.

    Raises:
        CallError: A container has an object of Flax NNX. sync() also raises this error, on all
            ranks, if the pytrees differ between the ranks or an object of rank 0 cannot be pickled.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(broadcast_object, lifecycle.rank)
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self._objects: dict[str, Any] = {}  # the objects of Flax NNX at the last save()
        self.save()

    def save(self) -> None:
        wait_for_programs()  # an array may be the result of a call that fails only later
        saved = {name: _copy(value, _saved_leaf) for name, value in self._pytrees().items()}
        self._saved, self._objects = saved, self._nnx_objects()

    def restore(self) -> None:
        for name, value in self._saved.items():
            self._set_value(name, self._objects.get(name), _copy(value, _restored_leaf))

    def _pytrees(self) -> dict[str, Any]:
        return {name: _pytree_of(name, getattr(self, name)) for name in self._names}

    def _nnx_objects(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._names}
        return {name: value for name, value in values.items() if _is_nnx_object(value)}

    def _set_value(self, name: str, nnx_object: Any, value: Any) -> None:
        if nnx_object is not None:
            sys.modules["flax.nnx"].update(nnx_object, value)
        setattr(self, name, value if nnx_object is None else nnx_object)

    def sync(self) -> None:
        """Give all ranks the current values of rank 0, and save them."""
        values = self._pytrees()
        # A subtree without arrays is sent as one object, so it may differ between the ranks.
        leaves, structure = jax.tree_util.tree_flatten_with_path(
            values, is_leaf=lambda part: part is not values and not _has_arrays(part)
        )
        leaf_is_array = [_is_sent_as_array(leaf) for _, leaf in leaves]
        descriptions = [_describe_leaf(path, leaf) for path, leaf in leaves]
        own_objects = [
            leaf for (_, leaf), is_array in zip(leaves, leaf_is_array, strict=True) if not is_array
        ]
        root_descriptions, objects = broadcast_object(
            (descriptions, own_objects), 0, "elastic.objects"
        )
        _check_descriptions(descriptions, root_descriptions)
        own_arrays = [
            leaf for (_, leaf), is_array in zip(leaves, leaf_is_array, strict=True) if is_array
        ]
        arrays = iter(grouped_broadcast(own_arrays, 0, "elastic.arrays") if own_arrays else [])
        received_objects = iter(objects)
        received_leaves = [
            next(arrays if is_array else received_objects) for is_array in leaf_is_array
        ]
        nnx_objects = self._nnx_objects()
        for name, value in jax.tree.unflatten(structure, received_leaves).items():
            self._set_value(name, nnx_objects.get(name), value)
        self.save()

    def reset(self) -> None:
        jax.clear_caches()

    if TYPE_CHECKING:  # the program chooses the names of the attributes

        def __getattr__(self, name: str) -> Any: ...


class _SavedArray:
    """An array, and a view of its memory. If the array is donated to a program, JAX does not write
    the program's results into this memory as long as the view exists."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array
        self._view = np.asarray(jax_arrays.key_data(array))

    def restored(self) -> jax.Array:
        if not self._array.is_deleted():
            return self._array
        data = jnp.array(self._view)
        if jax_arrays.is_key(self._array):
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(self._array))
        return data


def _saved_leaf(leaf: Any) -> Any:
    return _SavedArray(leaf) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf)


def _restored_leaf(leaf: Any) -> Any:
    return leaf.restored() if isinstance(leaf, _SavedArray) else copy.deepcopy(leaf)


def _copy(value: Any, copy_leaf: Callable[[Any], Any]) -> Any:
    # jax.tree.map() would change the order of the keys in a dict, so values without arrays are
    # copied by deepcopy().
    return jax.tree.map(copy_leaf, value) if _has_arrays(value) else copy.deepcopy(value)


def _has_arrays(value: Any) -> bool:
    return any(isinstance(leaf, (jax.Array, _SavedArray)) for leaf in _leaves(value))


def _leaves(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    try:
        return jax.tree.leaves(value, is_leaf=is_leaf)
    except ValueError:  # a dict whose keys cannot be sorted is not a pytree
        return []


def _is_nnx_object(value: Any) -> bool:
    """Return whether the value is an object of Flax NNX, which a program trains in place."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Object)


def _pytree_of(name: str, value: Any) -> Any:
    """Return the variables of an object of Flax NNX. Return any other value unchanged."""
    if _is_nnx_object(value):
        return sys.modules["flax.nnx"].state(value)
    if any(map(_is_nnx_object, _leaves(value, _is_nnx_object))):
        raise CallError(
            f"`{name}` is a {type(value).__name__} with an object of Flax NNX, but JaxState can "
            "change such an object only if it has a name of its own: write JaxState(model=model, "
            "optimizer=optimizer)"
        )
    return value


def _is_sent_as_array(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return False
    name = leaf.dtype.name
    return jax_arrays.is_key(leaf) or SIGNED_DTYPES.get(name, name) in core.dtypes


def _describe_leaf(path: Any, leaf: Any) -> str:
    """Describe a leaf, so that the ranks can compare their pytrees."""
    kind = jax_arrays.dtype_and_shape(leaf) if _is_sent_as_array(leaf) else "object"
    return f"{jax.tree_util.keystr(path, simple=True, separator='.')}: {kind}"


def _check_descriptions(descriptions: list[str], root_descriptions: list[str]) -> None:
    """Raise CallError on all ranks if the pytrees of some rank differ from those of rank 0."""
    pairs = itertools.zip_longest(descriptions, root_descriptions, fillvalue="nothing")
    problem = next(
        (
            f"{own_description} (rank 0 has {root_description})"
            for own_description, root_description in pairs
            if own_description != root_description
        ),
        "",
    )
    if problems := gather_error_texts(problem, "elastic.rows", global_process_set):
        raise CallError(
            f"the state of some ranks has other arrays than that of rank 0:\n{table(problems)}\n"
            "Make the state in the same way on all ranks"
        )
