"""Register the backend "farandole" when a program imports torch.

torch calls autoload(), which is an entry point of the group torch.backends, in every program that
imports torch. So autoload() is quick and cannot fail: the package farandole is imported only when a
program uses the backend. TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches autoload() off; then
`import farandole.torch` registers the backend.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

BACKEND_NAME = "farandole"
_WARNING_SHOWN_VARIABLE = "FARANDOLE_REPORTED_JOB_WITHIN_A_WORKER"


def autoload() -> None:
    """Register the backend; do nothing if that fails."""
    with suppress(Exception):
        register()
    with suppress(Exception):
        _warn_of_nested_job()


def register() -> None:
    """Register the backend and its scheme with torch.distributed. A second call does nothing."""
    import torch.distributed as dist  # noqa: PLC0415 - torch imports this module

    if not dist.is_available() or hasattr(dist.Backend, BACKEND_NAME.upper()):
        return
    dist.Backend.register_backend(
        BACKEND_NAME, _make_process_group, extended_api=True, devices=["cpu"]
    )
    dist.register_rendezvous_handler(BACKEND_NAME, _rendezvous)


def _make_process_group(options: Any, backend_options: object) -> Any:
    from farandole.torch.distributed.process_group import make_process_group  # noqa: PLC0415

    return make_process_group(options, backend_options)


def _rendezvous(url: str, **options: Any) -> Iterator[Any]:
    from farandole.torch.distributed.rendezvous import rendezvous_handler  # noqa: PLC0415

    return rendezvous_handler(url, **options)


def _warn_of_nested_job() -> None:
    """Print a warning if a worker of `farandole run` has started this process as a rank of a new
    job.

    Then each worker has a job of its own, and these jobs train different models, with any backend.
    No other check reports this mistake. One process of each new job prints the warning: the lowest
    rank whose variables cannot be those of the worker itself. The children of this process do not
    repeat the warning.
    """
    names = (("FARANDOLE_RANK", "FARANDOLE_SIZE"), ("RANK", "WORLD_SIZE"))
    outer, inner = (tuple(os.environ.get(name, "") for name in pair) for pair in names)
    if "" in outer + inner or outer == inner or multiprocessing.parent_process() is not None:
        return
    reporting_rank = "1" if outer == ("0", inner[1]) else "0"
    if inner[0] != reporting_rank or _WARNING_SHOWN_VARIABLE in os.environ:
        return
    os.environ[_WARNING_SHOWN_VARIABLE] = "1"
    print(
        f"farandole: this process (pid {os.getpid()}) is rank {inner[0]} of {inner[1]} by RANK and "
        f"WORLD_SIZE, but a worker of `farandole run`, rank {outer[0]} of {outer[1]}, has started "
        f"it. So each worker trains in a job of its own, apart from the other workers. To train "
        "together, use only one launcher.",
        file=sys.stderr,
        flush=True,
    )
