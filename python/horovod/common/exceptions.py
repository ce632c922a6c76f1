"""Horovod's exceptions, mapped to those of Farandole."""

from __future__ import annotations

from farandole.elastic import HostsUpdatedInterrupt
from farandole.errors import FarandoleError

# Any error of a collective call: a rank is gone, or ranks disagree. The error of an invalid call is
# also a ValueError, as programs that were written for Horovod expect.
HorovodInternalError = FarandoleError


class HorovodVersionMismatchError(ImportError):
    """Exists so that programs can import it. It is never raised, because the engine does not depend
    on the version of a framework."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"built with {name} {version}, but {name} {installed_version} is installed"


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
