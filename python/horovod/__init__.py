"""Horovod's import paths, by Farandole: `import horovod.torch as hvd` goes on to work."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from horovod.version import __version__

if TYPE_CHECKING:
    from horovod.runner import run

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    """`run`, when it is asked for: workers have no use for the parser and all that it needs."""
    if name == "run":
        return import_module("horovod.runner").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
