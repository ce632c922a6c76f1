"""Find which Debian packages of a list are not installed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def missing_packages(list_file: Path) -> list[str]:
    wanted = list_file.read_text().split()
    query = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Abbrev}\n", *wanted]
    answer = subprocess.run(query, check=False, capture_output=True, text=True).stdout
    installed = {line.split()[0] for line in answer.splitlines() if line.split()[1:] == ["ii"]}
    return [package for package in wanted if package not in installed]
