"""The wheel as a user gets it: built by pip, installed and run where there is no compiler."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
RUNNING = f"3.{sys.version_info.minor}"
COMPILERS = "cc c++ gcc g++ clang clang++ cmake ninja make".split()
LIBRARIES = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"}
LOADER = re.compile(r"ld-linux[\w.-]*")


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=1800,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", folder),
        "--config-settings=build.tool-args=-j2",
        "--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache",
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def alias(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alias")
    source = ROOT / "python/horovod"
    run(
        *(sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder),
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def content(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("content")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    machine = platform.machine()
    assert re.fullmatch(rf"farandole-[0-9.]+-cp310-abi3-linux_{machine}\.whl", wheel.name)


def test_the_wheel_holds_only_needed_files(content: Path) -> None:
    files = {path.relative_to(content).as_posix() for path in content.rglob("*") if path.is_file()}
    data = {re.sub(r"^farandole-[0-9.]+\.(dist-info|data)/", r"\1/", file) for file in files}
    top = ROOT / "python"
    packages = (top / "farandole", top / "farandole_torch_backend")
    sources = {str(path.relative_to(top)) for each in packages for path in each.rglob("*.py")}
    typing = {"farandole/core.pyi", "farandole/py.typed"}
    names = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    facts = {f"dist-info/{name}" for name in names}
    binaries = {"farandole/core.abi3.so", "data/scripts/farandole"}
    assert data == sources | typing | facts | binaries


def test_the_binaries_need_only_the_c_and_cpp_libraries(content: Path) -> None:
    binaries = [*content.rglob("*.so"), *content.glob("*.data/scripts/farandole")]
    assert len(binaries) == 2
    for binary in binaries:
        facts = run("readelf", "-d", binary)
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", facts))
        assert needed, facts
        assert {name for name in needed if not LOADER.fullmatch(name)} <= LIBRARIES, facts
        assert not re.search(r"\((RPATH|RUNPATH)\)", facts), facts


def candidates(version: str) -> Iterator[Path]:
    if version == RUNNING:
        yield Path(sys.base_prefix) / "bin" / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"


def interpreter(version: str) -> Path | None:
    """Find a Python that can make environments with pip; a name in PATH may not work."""
    for path in candidates(version):
        if path.is_file():
            question = (path, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])")
            answer = subprocess.run(question, check=False, capture_output=True, text=True)
            if answer.stdout.strip() == version:
                return path
    return None


def without_compiler(environment: Path) -> dict[str, str]:
    """Return the variables of a user who has activated `environment` and has no compiler."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FARANDOLE_", "PYTHON", "VIRTUAL_ENV", "CMAKE_", "OMP_"))
    }
    path = str(environment / "bin")
    assert [name for name in COMPILERS if shutil.which(name, path=path)] == []
    compilers = {"CC": "/bin/false", "CXX": "/bin/false"}
    return {**kept, **compilers, "PATH": path, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(10, 15)])
def test_the_wheel_works_without_a_compiler(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        assert version != RUNNING, "the running Python cannot make environments (ensurepip)"
        pytest.skip(f"there is no Python {version} with ensurepip in PATH or in pyenv's versions")
    assert ROOT not in tmp_path.parents
    environment = tmp_path / "environment"
    run(python, "-m", "venv", environment)
    variables = without_compiler(environment)
    commands = environment / "bin"
    run(commands / "python", "-m", "pip", "install", "-q", wheel, environment=variables)
    smoke = shutil.copy(SMOKE, tmp_path)
    output = run(commands / "farandole", "run", "-n", "2", "python", smoke, environment=variables)
    assert sorted(output.splitlines()) == [f"[{r}] rank {r} of 2: 3 0 30" for r in (0, 1)]
    reported = run(commands / "farandole", "--version", environment=variables)
    assert wheel.name.split("-")[1] in reported


def test_the_alias_is_a_wheel_of_its_own(alias: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert alias.name == f"farandole_horovod-{version}-py3-none-any.whl"
    with zipfile.ZipFile(alias) as content:
        files = {name for name in content.namelist() if ".dist-info/" not in name}
        (facts,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        needed = re.findall(
            r"^Requires-Dist: ([^;\n]+)$", content.read(facts).decode(), re.MULTILINE
        )
    package = ROOT / "python/horovod"
    sources = {f"horovod/{path.relative_to(package)}" for path in package.rglob("*.py")}
    assert files == sources | {"horovod/py.typed"}
    assert needed == [f"farandole=={version}", "PyYAML>=6"]
    with zipfile.ZipFile(wheel) as content:
        assert [name for name in content.namelist() if "horovod" in name] == []


def link_packages(environment: Path) -> None:
    """Link the packages that are installed here, except ours: PyTorch is too large to copy."""
    (target,) = environment.glob("lib/python*/site-packages")
    folders = {Path(sysconfig.get_path("purelib")), Path(yaml.__file__).parents[1]}
    folders |= {Path(path) for path in sys.path if path.endswith("site-packages")}
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        kept = entry.name.startswith(("farandole", "horovod", "pip", "__pycache__"))
        if not kept and entry.suffix != ".pth" and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


TRAINING_SCRIPT = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor(1.0 + hvd.rank()), op=hvd.Sum, name="total")
print(f"rank {hvd.rank()} of {hvd.size()}: {total.item():g}")
"""
FIND_HOROVOD = "import importlib.util; print(importlib.util.find_spec('horovod'))"


def test_only_the_alias_installs_horovods_names(wheel: Path, alias: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment)
    variables = without_compiler(environment)
    commands = environment / "bin"
    install = (commands / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    link_packages(environment)
    run(*install, wheel, environment=variables)
    assert run(commands / "python", "-c", FIND_HOROVOD, environment=variables) == "None\n"
    assert [path.name for path in commands.glob("horovod*")] == []
    run(*install, alias, environment=variables)
    script = tmp_path / "script.py"
    script.write_text(TRAINING_SCRIPT)
    output = run(commands / "horovodrun", "-np", "2", "python", script, environment=variables)
    lines = sorted(line for line in output.splitlines() if line.startswith("["))
    assert lines == [f"[{r}]<stdout>:rank {r} of 2: 3" for r in (0, 1)], output
