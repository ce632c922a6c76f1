"""Give all ranks the same parameters, and check that the parameters are the same."""

from __future__ import annotations

import itertools
import json
from typing import Any, TypeVar

import jax

from farandole.comparison import table, texts_if_different
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.jax import arrays as jax_arrays
from farandole.jax.operations import broadcast
from farandole.jax.primitive import is_traced, wait_for_programs
from farandole.training import parameter_check

Tree = TypeVar("Tree")

_ADVICE = (
    "Give all ranks the same values: params = hvd.broadcast_parameters(params, root_rank=0) after "
    "the model is built and after a checkpoint is loaded"
)


def broadcast_parameters(
    params: Tree, root_rank: int = 0, process_set: Group = global_process_set
) -> Tree:
    """Return root_rank's values of a pytree, such as parameters or the state of an optimizer.

    The call blocks until all members have made it. All members give a pytree with the same paths in
    the same order, and with the same shapes and dtypes. Inside jit, the paths are not compared.

    Args:
        params: The pytree. Its leaves are arrays, numbers or keys of jax.random.
        root_rank: The rank, counted in the world, that sends its values to all members.
        process_set: The group; by default all ranks.

    Raises:
        CallError: The members give different paths, shapes or dtypes, or a leaf is not an array.
        GroupLostError: A member has left or died.
    """
    if not is_traced(jax.tree.leaves(params)):
        _check_paths(params, process_set)
    return broadcast(params, root_rank, "parameters", process_set)


def _check_paths(params: Any, process_set: Group) -> None:
    """Raise CallError on all members if their pytrees have different paths, or the same paths in
    another order, which is possible with an OrderedDict. The broadcast pairs the leaves by their
    order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    paths = json.dumps([jax.tree_util.keystr(path) for path, _ in leaves])
    paths_by_rank = texts_if_different(paths, "parameters.paths", process_set)
    if not paths_by_rank:
        return
    paths_of_ranks = {rank: json.loads(rank_paths) for rank, rank_paths in paths_by_rank.items()}
    columns = enumerate(itertools.zip_longest(*paths_of_ranks.values()), start=1)
    leaf_number, leaf_paths = next(
        (i, leaf_paths) for i, leaf_paths in columns if len(set(leaf_paths)) > 1
    )
    leaf_by_rank = {
        rank: "there is none" if path is None else f"`{path}`"
        for rank, path in zip(paths_of_ranks, leaf_paths, strict=True)
    }
    raise CallError(
        f"params has other leaves, or another order of them, on some ranks: leaf {leaf_number} is\n"
        f"{table(leaf_by_rank)}\nGive all ranks the same keys in the same order"
    )


def check_parameters(
    params: Any, name: str | None = None, *, process_set: Group = global_process_set
) -> None:
    """Raise CallError on all ranks, with the same text, if their parameters differ.

    The text names the first parameter that differs, and the ranks. The call blocks until all
    members have made it. If the parameters are equal, the ranks exchange only 32 bytes. The
    comparison is bit by bit.

    Args:
        params: A pytree of arrays, which may be keys of jax.random. They are compared by their
            paths in the pytree.
        name: The name of the call. If it is None, the name is `check_parameters`.
        process_set: The group.
    """
    wait_for_programs()
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    named_arrays = [
        (jax.tree_util.keystr(path), jax_arrays.key_data(leaf)) for path, leaf in leaves
    ]
    parameter_check.check(jax_arrays, named_arrays, process_set, name, advice=_ADVICE)
