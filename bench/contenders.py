"""The contenders and the commands that run them: ours, the limits, MPI with many settings, Gloo.

Every program prints JSON with the keys of bench/measure.cc. Which setting of another library is the
best depends on the size and on the machine, so we list several settings and try all of them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/dev/bench"
TIMEOUT_S = 150
Result = dict[str, Any]


class WrongResultError(RuntimeError):
    """A contender has computed a wrong result. This error ends the program. After any other error,
    the program only drops the round in which the error occurred."""


@dataclass(frozen=True)
class Task:
    """What to measure; sizes are in bytes."""

    operation: str = "allreduce"
    ranks: int = 2
    sizes: tuple[int, ...] = (8,)
    dtype: str = "float32"
    flags: tuple[str, ...] = ()  # such as --consume, --tight or --in-place
    seconds: float = 0.05  # measured seconds per size

    def words(self, sizes: tuple[int, ...]) -> tuple[str, ...]:
        sizes_text = ",".join(str(size) for size in sizes)
        options = ("--sizes", sizes_text, "--dtype", self.dtype, "--seconds", str(self.seconds))
        return (self.operation, *options, *self.flags, "--json")

    def as_copy_task(self) -> Task:
        """Return a task that only copies the same number of bytes. No library can be faster on this
        machine than this copy."""
        flags = tuple(flag for flag in self.flags if flag != "--in-place")
        return replace(self, operation="memcpy", flags=flags)


@dataclass(frozen=True)
class Contender:
    library: str  # farandole, openmpi, mpich, gloo, memcpy
    setting: str  # the name of the library's settings, or empty
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict, hash=False, compare=False)
    trailing_words: tuple[str, ...] = ()  # the last words of the command, after those of the task

    @property
    def name(self) -> str:
        return f"{self.library}/{self.setting}" if self.setting else self.library

    def command_line(self, task: Task, sizes: tuple[int, ...]) -> str:
        """Return the command as a line that people can read and repeat."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        words = (*variables, *self.command, *task.words(sizes), *self.trailing_words)
        return shlex.join(words).replace(f"{ROOT}/", "")

    def run(self, task: Task, sizes: tuple[int, ...]) -> list[Result]:
        """Run the command and return its results.

        If it fails or its result is wrong, raise RuntimeError with its output.
        """
        words = [*self.command, *task.words(sizes), *self.trailing_words]
        variables = os.environ | self.variables
        try:
            process = subprocess.run(
                words, capture_output=True, text=True, env=variables, timeout=TIMEOUT_S, check=True
            )
            results: list[Result] = json.loads(process.stdout)
        except (subprocess.SubprocessError, ValueError) as failure:
            errors = str(getattr(failure, "stderr", "") or "")
            raise RuntimeError(f"{self.name}: {failure}\n{errors[-1000:]}") from None
        if not all(result["verified"] for result in results):
            raise WrongResultError(
                f"{self.name}: a result is wrong ({self.command_line(task, sizes)})"
            )
        return results


def ours(ranks: int, *more: str) -> Contender:
    command = (str(PROGRAMS / "collective_bench"), "-n", str(ranks))
    return Contender("farandole", "", command, trailing_words=more)


def memcpy(ranks: int) -> Contender:
    return Contender("memcpy", "", (str(PROGRAMS / "limits"), "-n", str(ranks)))


def gloo(ranks: int) -> list[Contender]:
    script = str(ROOT / "bench/peers/gloo_bench.py")
    command = (sys.executable, "-W", "ignore", script, "-n", str(ranks))
    binding = {"pinned": "--pin", "free": "--no-pin"}
    return [
        Contender("gloo", name, command, trailing_words=(word,)) for name, word in binding.items()
    ]


def mpi(task: Task, cores: int) -> list[Contender]:
    """Return all settings of which one may be the best for a task."""
    oversubscribed = task.ranks > cores
    return [*open_mpi(task, oversubscribed), *mpich(task, oversubscribed)]


def open_mpi(task: Task, oversubscribed: bool) -> list[Contender]:
    program = PROGRAMS / "mpi_bench_openmpi"
    start = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(task.ranks))
    ob1 = ("--mca", "pml", "ob1", "--mca", "btl", "self,vader")
    copies = {"cma": (), "nocma": ("--mca", "btl_vader_single_copy_mechanism", "none")}
    eager = ("--mca", "btl_vader_eager_limit", "32768", "--mca", "btl_vader_rndv_eager_limit")
    variants: dict[str, tuple[str, ...]] = {**copies, "eager": (*eager, "32768")}
    variants["sm"] = ("--mca", "coll_sm_priority", "90")
    variants["sm-64k"] = (*variants["sm"], "--mca", "coll_sm_fragment_size", "65536")
    tuned = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca")
    if task.operation == "allreduce":
        algorithms = {"doubling": "3", "segmented-ring": "5", "rabenseifner": "6"}
        for name, number in algorithms.items():
            for kind, copy in copies.items():
                words = (*copy, *tuned, "coll_tuned_allreduce_algorithm", number)
                variants[f"{name}-{kind}"] = words
    bind_words_by_suffix: dict[str, tuple[str, ...]] = {
        "": ("--bind-to", "core", "--map-by", "core")
    }
    if oversubscribed:
        yielding = ("--mca", "mpi_yield_when_idle", "1")
        bind_words_by_suffix = {"": ("--bind-to", "none", *yielding)}
        bind_words_by_suffix["-bound"] = (
            "--bind-to",
            "core:overload-allowed",
            "--map-by",
            "core",
            *yielding,
        )
    return [
        Contender("openmpi", f"{name}{suffix}", (*start, *bind_words, *ob1, *words, str(program)))
        for name, words in variants.items()
        for suffix, bind_words in bind_words_by_suffix.items()
        # If ranks share cores, all settings run with ranks bound to cores. Only these three
        # settings also run with unbound ranks, because running all settings twice takes too long.
        if suffix or not oversubscribed or name in ("cma", "nocma", "sm")
    ]


def mpich(task: Task, oversubscribed: bool) -> list[Contender]:
    program = PROGRAMS / "mpi_bench_mpich"
    start = ("mpirun.mpich", "-n", str(task.ranks))
    variable = "MPIR_CVAR_{}_POSIX_INTRA_ALGORITHM"
    gather = {variable.format(name): "release_gather" for name in ("ALLREDUCE", "BCAST", "REDUCE")}
    copies = {"default": {}, "nocma": {"UCX_TLS": "posix,self"}}
    variants: dict[str, dict[str, str]] = {**copies}
    variants["release-gather"] = gather | {"MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "1"}
    if task.operation == "allreduce":
        algorithms = {"doubling": "recursive_doubling", "rsag": "reduce_scatter_allgather"}
        for name, word in algorithms.items():
            for kind, copy in copies.items():
                variants[f"{name}-{kind}"] = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": word} | copy
    bind_words_by_suffix: dict[str, tuple[str, ...]] = {"": ("-bind-to", "core")}
    if oversubscribed:
        bind_words_by_suffix = {"": (), "-bound": ("-bind-to", "core")}
        variants["yield"] = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
        variants["yield-nocma"] = variants["yield"] | copies["nocma"]
    return [
        Contender("mpich", f"{name}{suffix}", (*start, *bind_words, str(program)), variables)
        for name, variables in variants.items()
        for suffix, bind_words in bind_words_by_suffix.items()
        if not suffix or name == "default"
    ]
