"""Provide Horovod's import paths, so that `import horovod.torch as hvd` still works."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from horovod.version import __version__

if TYPE_CHECKING:
    from horovod.runner import run

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    """Import `run` on first use, because workers do not need the launcher's modules."""
    if name == "run":
        return import_module("horovod.runner").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
