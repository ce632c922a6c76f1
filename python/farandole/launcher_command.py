"""Find the command `farandole`."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from typing import NoReturn

from farandole.errors import FarandoleError

# Python ignores these signals. The launcher, which replaces Python, must not ignore them.
_SIGNALS_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def launcher_command() -> str:
    """Return the path of the command that was installed with this Python. If there is none, return
    the path of the command in PATH.

    Raise FarandoleError if PATH has none either.
    """
    folders = [sysconfig.get_path("scripts")]
    folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    folders.append(os.environ.get("PATH", os.defpath))
    command_path = shutil.which("farandole", path=os.pathsep.join(folders))
    if command_path is None:
        raise FarandoleError(
            "the command `farandole` is neither in the folder of this Python nor in PATH"
        )
    return command_path


def become_launcher(path: str, words: list[str]) -> NoReturn:
    """Execute the command in place of this process. Raise OSError if that is not possible."""
    for number in _SIGNALS_IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.execv(path, words)
