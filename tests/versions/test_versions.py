"""Farandole with each version of torch, and with three of JAX, in jobs of two ranks.

A test installs its version in build/versions, once. For each minor version, the newest patch
release is tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cuda_stubs
import pytest
from job import WORKER, run
from version_checks import VersionChecks

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = """2.4.1 2.5.1 2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0
    2.14.1""".split()
JAX_VERSIONS = "0.6.2 0.8.1 0.10.2".split()
CHECKS = sorted(name for name in dir(VersionChecks) if name.startswith("check_"))


def install_torch(version: str) -> Path:
    """Return a folder with this version of torch. Its dependencies are those of .venv's torch."""
    folder = ROOT / "build/versions" / version
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile")
        subprocess.run([*pip, "--target", folder, f"torch=={version}"], check=True)
        cuda_stubs.make(folder / "torch/lib")
        (folder / "complete").touch()
    return folder


def load_once(environment: dict[str, str]) -> None:
    """Import torch once, so that its libraries are in memory and the ranks start in seconds."""
    words = (sys.executable, "-c", "import torch")
    subprocess.run(words, check=True, env={**os.environ, **environment}, timeout=600)


def id_of_test(version: str) -> str:
    """Return the id of a test. `./dev ci` runs only the tests with "ends" in their ids."""
    return f"ends-{version}" if version in (VERSIONS[0], VERSIONS[-1]) else version


@pytest.mark.parametrize("version", VERSIONS, ids=id_of_test)
def test_torch(version: str, record_property: pytest.RecordProperty) -> None:
    record_property("torch", version)
    path = os.pathsep.join([str(install_torch(version)), str(Path(__file__).parent)])
    environment = {"PYTHONPATH": path, "WANTED_TORCH": version}
    load_once(environment)
    job = run(2, sys.executable, WORKER, "version_checks:VersionChecks", environment=environment)
    passed = re.findall(r"\[0\] (check_\w+) ", job.text)
    failed = first_not_passed(passed)
    for name in CHECKS:
        outcome = "works" if name in passed else "fails" if name == failed else "not run"
        record_property(name.split("_", 2)[2], outcome)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == 2, job.text


def first_not_passed(passed: list[str]) -> str:
    return CHECKS[len(passed)] if len(passed) < len(CHECKS) else ""


def install_jax(version: str) -> Path:
    """Return a folder with this version of JAX. Its dependencies are those of .venv's JAX."""
    folder = ROOT / "build/versions" / f"jax-{version}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder)
        subprocess.run([*pip, f"jax=={version}", f"jaxlib=={version}"], check=True)
        (folder / "complete").touch()
    return folder


# The oldest version is that of the other tests.
@pytest.mark.parametrize(
    "version",
    JAX_VERSIONS,
    ids=lambda version: f"{'ends-' * (version == JAX_VERSIONS[-1])}{version}",
)
def test_jax(version: str) -> None:
    environment = {
        "PYTHONPATH": str(install_jax(version)),
        "WANTED_JAX": version,
        "JAX_PLATFORMS": "cpu",
    }
    suite = "jax_compiled:JaxCompiledChecks"
    job = run(2, sys.executable, WORKER, suite, environment=environment)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == 2, job.text
