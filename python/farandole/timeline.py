"""Start and stop the timeline: a file that shows what all ranks do and when."""

from __future__ import annotations

import os

from farandole.errors import CallError
from farandole.lifecycle import engine


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin to write this rank's calls to a file for Perfetto (https://ui.perfetto.dev).

    Call it with the same path on every rank that the file should show; the ranks need not call it
    at the same time. The file of an earlier job is replaced. If this rank is already writing a
    timeline, the earlier timeline is stopped first. If the disk becomes full later, the log says
    so, and the training continues.

    Args:
        file_path: The path, which may be relative to the current folder.
        mark_cycles: Write a mark CYCLE_START whenever a call starts while no other call is in
            flight. Horovod marks its periodic cycles, which do not exist here.

    Raises:
        CallError: init() was not called, or the path cannot be written. CallError is also a
            ValueError.
        FarandoleError: A limit of the system was reached.
    """
    if not isinstance(file_path, (str, os.PathLike)):
        raise CallError(f"file_path must be a path; got {file_path!r}")
    encoded_path = os.fsencode(file_path)
    if b"\0" in encoded_path:
        raise CallError(f"file_path has a zero byte in it; got {file_path!r}")
    engine().start_timeline(encoded_path, bool(mark_cycles))


def stop_timeline() -> None:
    """Write the remaining calls of this rank to the file, and stop. Then the file can be read.

    Other ranks may continue to write. shutdown() also stops the timeline. If no timeline is on,
    this call does nothing.

    Raises:
        CallError: init() was not called.
    """
    engine().stop_timeline()
