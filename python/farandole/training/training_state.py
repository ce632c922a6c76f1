"""Give all ranks the parameters and the optimizer state of one rank.

The optimizer state is pickled, like other objects. Its arrays are left out of the pickle and sent
as arrays.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import cloudpickle

from farandole import arguments, lifecycle
from farandole.arrays import Array, Arrays, can_be_sent
from farandole.comparison import error_text_of, gather_error_texts, table
from farandole.errors import CallError
from farandole.group import Group
from farandole.handle import BatchHandle, Handle
from farandole.objects import broadcast_object
from farandole.training.collected_errors import CollectedErrors

# Starts a broadcast of an array from a root rank, with a name, in a group. If the framework allows
# it, the result is written into the array itself.
BroadcastAsync: TypeAlias = Callable[[Array, int, str, Group], Handle[Array]]


def broadcast_parameters(
    arrays: Arrays, broadcast: BroadcastAsync, params: Any, root_rank: int, process_set: Group
) -> dict[str, Array]:
    """Return root_rank's values of all parameters, by name, after waiting for them."""
    pairs = _name_array_pairs(arrays, params)
    for name, array in pairs:
        if array is not None and not arrays.is_array(array):
            raise CallError(
                f"params has {name!r} of the type {type(array).__name__}, but only tensors can be "
                "sent: leave it out, and use broadcast_object() for it"
            )
    present_pairs = [(name, array) for name, array in pairs if array is not None]
    named_arrays = [(f"parameters.{name}", array) for name, array in present_pairs]
    results = _broadcast_all(broadcast, named_arrays, root_rank, process_set)
    return {name: result for (name, _), result in zip(present_pairs, results, strict=True)}


def _name_array_pairs(arrays: Arrays, params: Any) -> list[tuple[str, Any]]:
    entries = params.items() if isinstance(params, Mapping) else params
    pairs = list(entries) if isinstance(entries, Iterable) else [entries]
    if not arrays.is_array(params):
        pairs = [(str(i), p) if arrays.is_array(p) else p for i, p in enumerate(pairs)]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise CallError(
            "params must be model.state_dict() or model.named_parameters(); got a "
            f"{type(params).__name__}"
        )
    return pairs


# size waiver: some parameters come from the frontend, the others from the user's program
def broadcast_optimizer_state(
    arrays: Arrays,
    broadcast: BroadcastAsync,
    read_state: Callable[[], Any],
    load_state: Callable[[Any], object],
    root_rank: int,
    process_set: Group,
) -> Any:
    """Give root_rank's state to all ranks and return it. root_rank calls read_state(), and the
    other ranks call load_state(). If one of these fails on a rank, raise CallError on all ranks."""
    state: list[Any] = []
    problem = ""
    if lifecycle.rank() == arguments.checked_rank(root_rank):
        state.append(_send_state(arrays, broadcast, read_state, root_rank, process_set))
    else:
        data, received_arrays = _receive_state(arrays, broadcast, root_rank, process_set)

        def unpickle_and_load() -> None:
            state.append(_Unpickler(data, received_arrays).load())
            load_state(state[0])

        problem = error_text_of(unpickle_and_load)
    if problems := gather_error_texts(problem, "state.taken", process_set):
        raise CallError(
            f"not all ranks could load the optimizer state of rank {root_rank}:\n{table(problems)}"
        )
    return state[0]


def restore_dtypes(arrays: Arrays, optimizer: Any, state: dict[str, Any]) -> None:
    """Restore the dtypes of the arrays that an optimizer of torch has loaded. load_state_dict() of
    torch converts the arrays to the dtypes of their parameters, so the arrays would differ from
    those of the rank that has sent the state. The state of a custom optimizer may lack torch's
    entries."""
    saved_values = state.get("state", {})
    for group, saved in zip(optimizer.param_groups, state.get("param_groups", []), strict=False):
        for parameter, index in zip(group["params"], saved.get("params", []), strict=False):
            if parameter in optimizer.state and index in saved_values:
                values = optimizer.state[parameter]
                values.update(_with_dtypes_of(arrays, values, saved_values[index]))


def _with_dtypes_of(arrays: Arrays, loaded: Any, saved: Any) -> Any:
    """Return what was loaded, but with `saved` in place of each array that now has another
    dtype."""
    if arrays.is_array(loaded) and arrays.is_array(saved):
        return loaded if loaded.dtype == saved.dtype else arrays.on_device_of(loaded, saved)
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {k: _with_dtypes_of(arrays, value, saved.get(k)) for k, value in loaded.items()}
    if type(loaded) in (list, tuple) and type(saved) is type(loaded):
        pairs = zip(loaded, saved, strict=True)
        return type(loaded)(_with_dtypes_of(arrays, *pair) for pair in pairs)
    return loaded


class _Pickler(cloudpickle.Pickler):
    """Pickle the state, and leave out the arrays that the engine can send."""

    def __init__(self, arrays: Arrays, file: io.BytesIO) -> None:
        super().__init__(file)
        self.left_out_arrays: list[Array] = []
        self._arrays = arrays
        self._indices: dict[int, int] = {}  # by id(), because an array may occur several times

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in self._arrays.exact_array_types or not can_be_sent(self._arrays, obj):
            return None
        if id(obj) not in self._indices:
            self._indices[id(obj)] = len(self.left_out_arrays)
            self.left_out_arrays.append(obj)
        return self._indices[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, left_out_arrays: Sequence[Array]) -> None:
        super().__init__(io.BytesIO(data))
        self._left_out = left_out_arrays

    def persistent_load(self, index: int) -> Array:
        return self._left_out[index]


def _send_state(
    arrays: Arrays,
    broadcast: BroadcastAsync,
    read_state: Callable[[], Any],
    root_rank: int,
    process_set: Group,
) -> Any:
    file = io.BytesIO()
    pickler = _Pickler(arrays, file)
    state: list[Any] = []

    def read_and_pickle() -> None:
        state.append(read_state())
        pickler.dump(state[0])

    problem = error_text_of(read_and_pickle)
    layouts = [(array.dtype, array.shape) for array in pickler.left_out_arrays]
    broadcast_object((problem, file.getvalue(), layouts), root_rank, "state.parts", process_set)
    _raise_if_problem(problem, root_rank)
    contiguous_arrays = [arrays.contiguous_on_host(array) for array in pickler.left_out_arrays]
    _broadcast_all(broadcast, _with_call_names(contiguous_arrays), root_rank, process_set)
    return state[0]


def _receive_state(
    arrays: Arrays, broadcast: BroadcastAsync, root_rank: int, process_set: Group
) -> tuple[bytes, list[Array]]:
    """Return the pickled state, and the arrays that were left out of it."""
    problem, data, layouts = broadcast_object(None, root_rank, "state.parts", process_set)
    _raise_if_problem(problem, root_rank)
    empty_arrays = [arrays.empty(shape, dtype) for dtype, shape in layouts]
    return data, _broadcast_all(broadcast, _with_call_names(empty_arrays), root_rank, process_set)


def _with_call_names(arrays: Sequence[Array]) -> list[tuple[str, Array]]:
    return [(f"state.{index}", array) for index, array in enumerate(arrays)]


def _raise_if_problem(problem: str, root_rank: int) -> None:
    if problem:
        raise CallError(f"the optimizer state of rank {root_rank} cannot be sent: {problem}")


def _broadcast_all(
    broadcast: BroadcastAsync,
    named_arrays: Iterable[tuple[str, Array]],
    root_rank: int,
    process_set: Group,
) -> list[Array]:
    """Broadcast the arrays under these names. If a call cannot start or fails, wait for all other
    calls before the error is raised, because the other ranks make these calls, and a name can be
    used again only after its call is done."""
    errors = CollectedErrors()
    handles: list[Handle[Array]] = []
    for name, array in named_arrays:

        def start(name: str = name, array: Array = array) -> None:
            handles.append(broadcast(array, root_rank, name, process_set))

        errors.attempt(start)
    results: list[Array] = []
    errors.attempt(lambda: results.extend(BatchHandle(handles).wait()))
    if errors.found:
        raise errors.pop_first()
    return results
