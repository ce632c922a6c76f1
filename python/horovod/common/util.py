"""Functions of Horovod's own modules that programs also use."""

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

EXTENSIONS = ["tensorflow", "torch", "mxnet"]  # the frameworks for which Horovod has code


def get_ext_suffix() -> str:
    """Return the file name suffix of a compiled module, such as ".so"."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of the engine. All frameworks share it, so the arguments have no effect."""
    return core.__file__


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless the frontend `ext_name`, such as "horovod.torch", works here."""
    framework = ext_name.removeprefix("horovod.")
    if not extension_available(framework):
        raise ImportError(
            f"{ext_name} does not work here: only PyTorch and TensorFlow do, and they must be "
            "installed"
        )


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework ("torch", "tensorflow" ...) works here, without importing it."""
    is_supported = ext_base_name in ("torch", "tensorflow")
    return is_supported and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the frontend of this framework runs collective operations on GPUs."""
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
    """Set variables until the end of the block. A value of None leaves its variable as it is."""
    values = {name: value for name, value in variables.items() if value is not None}
    former_values = {name: os.environ.get(name) for name in values}
    try:
        os.environ.update(values)
        yield
    finally:
        for name, value in former_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[reduce_op.ReduceOp | None, bool | None], reduce_op.ReduceOp]:
    """Return a function that makes one op from the arguments `op` and `average`."""
    return reduce_op.reduce_op_of


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Item], n: int) -> list[Sequence[Item]]:  # noqa: E741
    """Split a list into n contiguous parts, whose lengths differ by at most one."""
    length, longer_count = divmod(len(l), n)
    ends = [part * length + min(part, longer_count) for part in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: the engine works with every version of a framework."""


def is_iterable(x: Any) -> bool:
    return isinstance(x, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare the numbers at the beginning of versions such as "2.13.0+cpu"."""
    return _release_numbers(ver) >= _release_numbers(target)


def _release_numbers(version: Any) -> list[int]:
    number_match = re.match(r"\d+(\.\d+)*", version) if isinstance(version, str) else None
    if number_match is None:
        raise ValueError(f"{version!r} is not a version; write it as in 1.2.3")
    numbers = [int(number) for number in number_match[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _cache(function: Function) -> Function:
    """Cache the result of a function for each combination of arguments."""
    return functools.cache(function)  # type: ignore[return-value]
