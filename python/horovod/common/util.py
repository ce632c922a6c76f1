"""What Horovod's own modules share, as far as programs use it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import farandole
from farandole import core, reduce_op

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")


def get_ext_suffix() -> str:
    """The end of the name of a compiled module, such as ".so"."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where the engine is: one for all frameworks, whatever is asked for."""
    return core.__file__


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError unless the framework, as in "horovod.torch", works here."""
    framework = ext_name.removeprefix("horovod.")
    if not extension_available(framework):
        raise ImportError(
            f"{ext_name} does not work here: only PyTorch does, and it must be installed"
        )


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Does "torch", "tensorflow" ... work here? The framework is not imported."""
    return ext_base_name == "torch" and importlib.util.find_spec("torch") is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Does Horovod's module for this framework run collectives on GPUs?"""
    return extension_available(ext_base_name) and cuda_built()


def cuda_built() -> bool:
    return bool(farandole.cuda_built())


def mpi_built(verbose: bool = False) -> bool:
    return bool(farandole.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    return bool(farandole.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    return bool(farandole.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return bool(farandole.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    return bool(farandole.ccl_built())


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets variables, or unsets them where the value is None, until the end of the block."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set_variables(variables)
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[reduce_op.ReduceOp | None, bool | None], reduce_op.ReduceOp]:
    """The function of (op, average) that says which op is meant."""
    return reduce_op.chosen


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """That many runs of neighbours, whose lengths differ by one at most."""
    length, longer = divmod(len(items), parts)
    ends = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Every version of a framework will do: the engine is not built for one."""


def is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares the numbers at the begin of versions such as "2.13.0+cpu"."""
    return _release(ver) >= _release(target)


def _release(version: Any) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version) if isinstance(version, str) else None
    if found is None:
        raise ValueError(f"{version!r} is no version; say it as in 1.2.3")
    numbers = [int(number) for number in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _cache(function: Function) -> Function:
    """A function that is called once for given arguments, and then remembers its answer."""
    return functools.cache(function)  # type: ignore[return-value]
