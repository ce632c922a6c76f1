"""Farandole with each version of torch, and with some of TensorFlow, Keras and JAX, in jobs of two
ranks.

The first run of a test installs its version in build/versions. For each minor version, the newest
patch release is tested.
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
        cuda_stubs.make_stubs(folder / "torch/lib")
        (folder / "complete").touch()
    return folder


def load_once(environment: dict[str, str]) -> None:
    """Import torch once, so that its libraries are in memory and the ranks start in seconds."""
    words = (sys.executable, "-c", "import torch")
    subprocess.run(words, check=True, env={**os.environ, **environment}, timeout=600)


@pytest.mark.parametrize("version", VERSIONS)
def test_torch(version: str, record_property: pytest.RecordProperty) -> None:
    record_property("torch", version)
    path = os.pathsep.join([str(install_torch(version)), str(Path(__file__).parent)])
    environment = {"PYTHONPATH": path, "WANTED_TORCH": version}
    load_once(environment)
    job = run(2, sys.executable, WORKER, "version_checks:VersionChecks", environment=environment)
    passed_checks = re.findall(r"\[0\] (check_\w+) ", job.text)
    failed_check = first_not_passed(passed_checks)
    for name in CHECKS:
        outcome = (
            "works" if name in passed_checks else "fails" if name == failed_check else "not run"
        )
        record_property(name.split("_", 2)[2], outcome)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == 2, job.text


def first_not_passed(passed_checks: list[str]) -> str:
    return CHECKS[len(passed_checks)] if len(passed_checks) < len(CHECKS) else ""


def install(name: str, *words: str) -> Path:
    """Return a folder build/versions/NAME with the packages that pip installs for these words."""
    folder = ROOT / "build/versions" / name
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "-q", "--target", folder)
        subprocess.run([*pip, *words], check=True)
        (folder / "complete").touch()
    return folder


def check_job(suite: str, environment: dict[str, str]) -> None:
    job = run(2, sys.executable, WORKER, suite, environment=environment)
    assert job.code == 0, job.text
    assert job.text.count("all checks passed") == 2, job.text


def install_jax(version: str) -> Path:
    """Return a folder with this version of JAX. Its dependencies are those of .venv's JAX."""
    requirements = (f"jax=={version}", f"jaxlib=={version}")
    return install(f"jax-{version}", *requirements, "--no-deps")


# The tests outside of this file use the oldest version.
@pytest.mark.parametrize("version", JAX_VERSIONS)
def test_jax(version: str) -> None:
    environment = {
        "PYTHONPATH": str(install_jax(version)),
        "WANTED_JAX": version,
        "JAX_PLATFORMS": "cpu",
    }
    check_job("jax_compiled:JaxCompiledChecks", environment)


# The tests outside of this file use 2.21.0.
@pytest.mark.parametrize("version", ["2.16.2", "2.18.1"])
def test_tensorflow(version: str) -> None:
    folder = install(f"tensorflow-{version}", f"tensorflow-cpu=={version}")
    # TensorFlow imports JAX if it is installed. The JAX of .venv needs newer packages.
    (folder / "jax.py").write_text('raise ImportError("hidden by this test")\n')
    environment = {"PYTHONPATH": str(folder), "WANTED_TENSORFLOW": version}
    check_job("tensorflow_compiled:TensorFlowCompiledChecks", environment)


# The tests outside of this file use 3.15.1. Keras 3.5 needs an older JAX than .venv has.
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras(backend: str) -> None:
    folder = install("keras-3.5.0", "keras==3.5.0", "--no-deps")
    environment = {"PYTHONPATH": str(folder), "WANTED_KERAS": "3.5.0", "KERAS_BACKEND": backend}
    check_job("keras_training:KerasTrainingChecks", environment)
