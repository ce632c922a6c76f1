"""Farandole runs one training script on many workers.

Import the frontend of your framework: `import farandole.torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farandole import core, exports
from farandole.errors import WorkerError
from farandole.exports import *  # noqa: F403

if TYPE_CHECKING:
    from farandole.jobs import await_workers, launch_workers, run, stop_workers

__version__ = core.version

__all__ = ["WorkerError", "await_workers", "launch_workers", "run", "stop_workers"]
__all__ += exports.__all__


def __getattr__(name: str) -> Any:
    """Import farandole.jobs on first use, because most workers do not need it."""
    if name in ("await_workers", "launch_workers", "run", "stop_workers"):
        return getattr(import_module("farandole.jobs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
