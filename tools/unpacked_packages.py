"""Debian packages that are unpacked in a folder but not installed, so that no service starts.

Some programs find their files only at paths below /usr. `overlay_prefix()` returns the words that
start such a program with the folder mounted over /usr, as if the packages were installed. Other
programs do not see the packages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hosts import HostsError, run_command
from progress import heartbeat

# `unshare --mount` gives the program its own view of the files, so that the rest of the machine
# does not see the folder $2 over /usr. In its view, everything that is mounted below /usr is
# missing, such as the drivers of a GPU in a container.
ENTER_SCRIPT = """set -e
hostname "$1"
if [ -n "$2" ]; then mount -t overlay -o "lowerdir=$2:/usr" overlay /usr; fi
shift 2
exec "$@"
"""
COMMANDS_TO_ENTER = ("hostname", "mount", "unshare")
APT_GET = ("apt-get", "-qq", "-o=Acquire::http::Timeout=30", "-o=APT::Sandbox::User=root")


def overlay_prefix(name: str, usr_overlay: Path | None) -> list[str]:
    """Return the words to put before a command. The command then runs with this host name, and with
    the folder `usr_overlay`, if there is one, mounted over /usr."""
    return [
        "unshare",
        "--uts",
        "--mount",
        "sh",
        "-c",
        ENTER_SCRIPT,
        "sh",
        name,
        str(usr_overlay or ""),
    ]


def why_not_enterable(usr_overlay: Path | None) -> str:
    """Return why programs cannot run with this folder over /usr, or an empty text if they can."""
    if missing := [name for name in COMMANDS_TO_ENTER if shutil.which(name) is None]:
        return f"the command `{missing[0]}` is missing"
    try:
        run_command(*overlay_prefix("probe", usr_overlay), "true")
    except HostsError as failure:
        return str(failure)
    return ""


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
        if (libraries := content / "lib").exists():  # on this machine, /lib is a link to /usr/lib
            shutil.copytree(libraries, content / "usr/lib", symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(libraries)
        prepare(content)
        try:
            content.rename(target)
        except OSError as failure:
            if not target.exists():  # another process may have made the folder
                raise HostsError(f"cannot write {target}: {failure}") from None


def download(what: str, packages: Sequence[str], folder: Path, dependencies: bool) -> None:
    all_packages = with_dependencies(packages) if dependencies else packages
    command = [*APT_GET, "download", *all_packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise HostsError(f"{what} is missing and cannot be downloaded: {reason}")


def with_dependencies(packages: Sequence[str]) -> list[str]:
    """Return the packages and their dependencies, without those that are installed."""
    plan = run_command(*APT_GET, "install", "--simulate", "--no-install-recommends", *packages)
    return new_packages(plan)


def new_packages(plan: str) -> list[str]:
    """Return the packages that apt-get would install, without those that it would upgrade."""
    return re.findall(r"^Inst (\S+) \(", plan, re.MULTILINE)
