"""Debian packages that are unpacked in a folder but not installed, so that no service starts."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hosts import HostsError, run_command
from progress import heartbeat

APT_GET = ("apt-get", "-qq", "-o=Acquire::http::Timeout=30", "-o=APT::Sandbox::User=root")


def unpack(
    what: str,
    packages: Sequence[str],
    target: Path,
    prepare: Callable[[Path], None],
    *,
    dependencies: bool = False,
) -> None:
    """Download the packages of the program `what` and unpack them in `target`.

    With `dependencies`, this includes packages that they depend on and that are not installed.
    `prepare` can check and change the unpacked files before they come to `target`.
    """
    for command in ("apt-get", "dpkg-deb"):
        if shutil.which(command) is None:
            raise HostsError(f"{what} is missing, and so is `{command}` to get it")
    target.parent.mkdir(exist_ok=True)
    with (
        heartbeat(f"downloading {what}"),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-") as folder,
    ):
        archives, content = Path(folder) / "archives", Path(folder) / "content"
        archives.mkdir()
        try:
            download(what, packages, archives, dependencies)
        except HostsError:  # the lists of packages may be empty or too old
            run_command(*APT_GET, "update")
            download(what, packages, archives, dependencies)
        for archive in archives.glob("*.deb"):
            run_command("dpkg-deb", "-x", str(archive), str(content))
        prepare(content)
        try:
            content.rename(target)
        except OSError as failure:
            if not target.exists():  # it exists if another process was faster
                raise HostsError(f"cannot write {target}: {failure}") from None


def download(what: str, packages: Sequence[str], folder: Path, dependencies: bool) -> None:
    all_packages = with_dependencies(packages) if dependencies else packages
    command = [*APT_GET, "download", *all_packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise HostsError(f"{what} is missing and cannot be downloaded: {reason}")


def with_dependencies(packages: Sequence[str]) -> list[str]:
    """Add the packages that the packages depend on; leave out those that are installed."""
    plan = run_command(*APT_GET, "install", "--simulate", "--no-install-recommends", *packages)
    return new_packages(plan)


def new_packages(plan: str) -> list[str]:
    """Return the packages that apt-get would install, without those that it would upgrade."""
    return re.findall(r"^Inst (\S+) \(", plan, re.MULTILINE)
