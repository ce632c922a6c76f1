"""Starting and stopping the timeline: a file that shows what all ranks do and when."""

from __future__ import annotations

import os

from farandole.errors import CallError
from farandole.lifecycle import engine


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """From now on this rank's calls are told in a file for Perfetto (https://ui.perfetto.dev).

    Every rank that is to be seen calls it with the same path, which may be relative to the folder
    that the process is in; they need not do it at the same time. What else is in the file is
    replaced. A timeline that is on is stopped before. mark_cycles: a mark CYCLE_START is where a
    call starts while none is in flight; Horovod's cycles by the clock do not exist here.

    Raises CallError, which is a ValueError, before init() or when the path cannot be written;
    FarandoleError at the system's limits. When the disk is full later on, the log says so, and the
    training goes on.
    """
    if not isinstance(file_path, (str, os.PathLike)):
        raise CallError(f"file_path must be a path; got {file_path!r}")
    name = os.fsencode(file_path)
    if b"\0" in name:
        raise CallError(f"file_path has a zero byte in it; got {file_path!r}")
    engine().start_timeline(name, bool(mark_cycles))


def stop_timeline() -> None:
    """This rank's calls until now are in the file, which others may go on with; it can be read.

    shutdown() does the same. Does nothing when no timeline is on. Raises CallError before init().
    """
    engine().stop_timeline()
