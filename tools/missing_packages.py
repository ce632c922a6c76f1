"""Find which Debian packages of a list are not installed."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

ONLY_FOR_X86_64 = {"libipsec-mb-dev"}


def missing_packages(list_file: Path) -> list[str]:
    wanted_packages = list_file.read_text().split()
    if platform.machine() != "x86_64":
        wanted_packages = [package for package in wanted_packages if package not in ONLY_FOR_X86_64]
    query = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Abbrev}\n", *wanted_packages]
    query_output = subprocess.run(query, check=False, capture_output=True, text=True).stdout
    installed = {
        line.split()[0] for line in query_output.splitlines() if line.split()[1:] == ["ii"]
    }
    return [package for package in wanted_packages if package not in installed]
