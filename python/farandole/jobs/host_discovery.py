"""The hosts of an elastic job, as a command or a function of the program lists them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from farandole import arguments
from farandole.errors import CallError

# Returns the hosts that the job may use, such as {"hen": 4, "owl": 2} or ["hen:4", "owl"].
ListHosts: TypeAlias = Callable[[], Any]
_SECONDS_BETWEEN_CALLS = 1.0


class HostDiscovery:
    """Gives a launcher a command that lists the hosts of a job.

    If the program lists the hosts with a function, a thread calls the function about once a second.
    The thread writes the list into a file, and the command for the launcher prints this file. If
    the function raises an exception or returns something wrong, the thread prints the error, and
    does not change the file.
    """

    def __init__(self, source: str | os.PathLike[str] | ListHosts) -> None:
        self._source = source
        self._folder: str | None = None
        self._is_stopped = threading.Event()
        self._last_error_text = ""

    def start(self) -> str:
        """Return the command that lists the hosts. If a function lists them, call it for the first
        time, and raise its errors. The caller must call stop() later."""
        if isinstance(self._source, str):
            return self._source
        if isinstance(self._source, os.PathLike):
            return shlex.quote(os.fspath(self._source))
        if not callable(self._source):
            raise CallError(
                "discover_hosts must be a command, the path of a script, or a function; got "
                f"{self._source!r}"
            )
        text = host_lines(self._source())
        self._folder = tempfile.mkdtemp(prefix="farandole-hosts-")
        self._write(text)
        threading.Thread(target=self._call_repeatedly, name="farandole-hosts", daemon=True).start()
        return f"cat {shlex.quote(self._file)}"

    def stop(self) -> None:
        """Stop calling the function. A call that has begun may still run."""
        self._is_stopped.set()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _file(self) -> str:
        return os.path.join(self._folder or "", "hosts")

    def _write(self, text: str) -> None:
        new_file = Path(self._file + ".new")
        new_file.write_text(text)
        new_file.rename(self._file)  # the launcher never reads half of the text

    def _call_repeatedly(self) -> None:
        assert callable(self._source)
        while not self._is_stopped.wait(_SECONDS_BETWEEN_CALLS):
            error_text = ""
            try:
                text = host_lines(self._source())
                if not self._is_stopped.is_set():
                    self._write(text)
            except CallError as error:
                error_text = str(error)
            except Exception as error:
                stack = error.__traceback__.tb_next if error.__traceback__ else None
                lines = traceback.format_exception(type(error), error, stack)
                error_text = f"discover_hosts has failed:\n{''.join(lines)}".rstrip()
            if error_text not in ("", self._last_error_text) and not self._is_stopped.is_set():
                message = f"farandole: {error_text}\nThe hosts stay as they are."
                print(message, file=sys.stderr, flush=True)
            self._last_error_text = error_text


def host_lines(hosts: Any) -> str:
    """Return the lines that list these hosts. Raise CallError if they are not a mapping from names
    to numbers of slots, or a list of strings."""
    if isinstance(hosts, Mapping):
        return "".join(
            f"{_checked_host(name)}:{_checked_slot_count(name, count)}\n"
            for name, count in hosts.items()
        )
    if isinstance(hosts, (list, tuple)):
        return "".join(f"{_checked_host(entry)}\n" for entry in hosts)
    raise CallError(
        'discover_hosts must return hosts and slots, such as {"hen": 4}, or a list such as '
        f'["hen:4"]; it has returned {hosts!r}'
    )


def _checked_host(name: Any) -> str:
    if isinstance(name, str) and name and not any(c.isspace() or c in "#," for c in name):
        return name
    raise CallError(
        f"discover_hosts has returned {name!r} as a host; it must be a string without spaces, such "
        "as hen"
    )


def _checked_slot_count(name: str, count: Any) -> int:
    number = None if isinstance(count, bool) else arguments.positive_whole_number(count)
    if number is None:
        raise CallError(
            f"discover_hosts has returned {count!r} slots for {name}; it must be a whole number, 1 "
            "or more"
        )
    return number
