"""Horovod's import paths, by Farandole: `import horovod.torch as hvd` goes on to work."""

from horovod.runner import run

# The release whose interface this is: programs compare it with what they need. Which Farandole is
# behind it says farandole.__version__.
__version__ = "0.28.1"

__all__ = ["run"]
