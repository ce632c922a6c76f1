"""The wheel and the sdist of a release. The wheel must work offline and without a compiler."""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import nanobind_backend
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import package_settings  # noqa: E402

SMOKE = Path(__file__).with_name("smoke.py")
RUNNING_PYTHON = f"3.{sys.version_info.minor}"
COMPILERS = "cc c++ gcc g++ clang clang++ cmake ninja make".split()
LIBRARIES = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"}
MACHINE = platform.machine()
PLATFORM = f"manylinux_2_34_{MACHINE}"
VERSIONS = [f"3.{minor}" for minor in range(10, 15)]
BACKENDS = {
    f"farandole/_nb_backend_v1.cpython-{version.replace('.', '')}-{MACHINE}-linux-gnu.so"
    for version in VERSIONS
}
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
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, ROOT / "tools/make_wheel.py", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def wheel(release: Path) -> Path:
    (wheel_file,) = release.glob("*.whl")
    return wheel_file


@pytest.fixture(scope="session")
def sdist(release: Path) -> Path:
    """Unpack the sdist, always in the same folder, so that ccache remembers what was compiled."""
    (archive_path,) = release.glob("*.tar.gz")
    folder = ROOT / "build/wheel/sdist"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive_path) as content:
        content.extractall(folder)
    (source_folder,) = folder.iterdir()
    return source_folder


@pytest.fixture(scope="session")
def package_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the packages that the wheel needs, so that the tests can install it offline."""
    folder = tmp_path_factory.mktemp("packages")
    run(sys.executable, "-m", "pip", "download", "-q", "-d", folder, "cloudpickle>=3")
    return folder


@pytest.fixture(scope="session")
def alias(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alias")
    source = ROOT / "python/horovod"
    run(
        *(sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder),
    )
    (alias_wheel,) = folder.glob("*.whl")
    return alias_wheel


@pytest.fixture(scope="session")
def content(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("content")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    tags = f"cp310-abi3-{PLATFORM}"
    assert re.fullmatch(rf"farandole-[0-9.]+-{tags}\.whl", wheel.name)
    audit = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert f'the following platform tag:\n"{PLATFORM}"' in audit.replace("tag: ", "tag:\n"), audit


def test_the_wheel_holds_only_needed_files(content: Path) -> None:
    files = {path.relative_to(content).as_posix() for path in content.rglob("*") if path.is_file()}
    data = {re.sub(r"^farandole-[0-9.]+\.(dist-info|data)/", r"\1/", file) for file in files}
    source_folder = ROOT / "python"
    packages = (source_folder / "farandole", source_folder / "farandole_torch_backend")
    sources = {
        str(path.relative_to(source_folder))
        for package in packages
        for path in package.rglob("*.py")
    }
    type_files = {"farandole/core.pyi", "farandole/py.typed"}
    licenses = {"licenses/LICENSE", "licenses/LICENSES_OF_LIBRARIES"}
    names = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", *licenses)
    metadata_files = {f"dist-info/{name}" for name in names}
    libraries = {"farandole/core.abi3.so", "farandole/tensorflow_ops.so", *BACKENDS}
    binaries = libraries | {"data/scripts/farandole"}
    assert data == sources | type_files | metadata_files | binaries


def test_the_metadata_is_complete(content: Path) -> None:
    (path,) = content.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Author"] == "The Farandole maintainers"
    needed_packages = [
        name for name in metadata.get_all("Requires-Dist", []) if "extra ==" not in name
    ]
    assert needed_packages == [
        "cloudpickle>=3",
        'nanobind-backend<2,>=1.0; python_version >= "3.15"',
    ]
    versions = {f"Programming Language :: Python :: {version}" for version in VERSIONS}
    assert versions <= set(metadata.get_all("Classifier", []))
    description = str(metadata.get_payload())
    assert "Farandole" in description
    relative_links = re.findall(r"\]\((?!https?:|#)[^)]*\)", description)
    assert not relative_links, "a link to a file is dead on the package index"


def test_the_binaries_need_only_the_c_and_cpp_libraries(content: Path) -> None:
    binaries = [*content.rglob("*.so"), *content.glob("*.data/scripts/farandole")]
    assert len(binaries) == 3 + len(BACKENDS)
    for binary in binaries:
        dynamic_section = run("readelf", "-d", binary)
        needed_libraries = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic_section))
        assert needed_libraries, dynamic_section
        assert {name for name in needed_libraries if not LOADER.fullmatch(name)} <= LIBRARIES, (
            dynamic_section
        )
        assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic_section), dynamic_section


def candidates(version: str) -> Iterator[Path]:
    if version == RUNNING_PYTHON:
        yield Path(sys.base_prefix) / "bin" / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"


def interpreter(version: str) -> Path | None:
    """Find a Python of this version that can make environments with pip, because the one in PATH
    may lack ensurepip."""
    for path in candidates(version):
        if path.is_file():
            version_command = (
                path,
                "-c",
                "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])",
            )
            completed = subprocess.run(version_command, check=False, capture_output=True, text=True)
            if completed.stdout.strip() == version:
                return path
    return None


def variables_without_compiler(environment: Path) -> dict[str, str]:
    """Return the variables of a user who has activated `environment` and has no compiler."""
    kept_variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FARANDOLE_", "PYTHON", "VIRTUAL_ENV", "CMAKE_", "OMP_"))
    }
    path = str(environment / "bin")
    assert [name for name in COMPILERS if shutil.which(name, path=path)] == []
    compilers = {"CC": "/bin/false", "CXX": "/bin/false"}
    return {**kept_variables, **compilers, "PATH": path, "OMP_NUM_THREADS": "1"}


def install(python: Path, environment: Path, wheel: Path, package_folder: Path) -> dict[str, str]:
    """Make an empty environment and install the wheel offline; return the user's variables."""
    assert ROOT not in environment.parents
    run(python, "-m", "venv", environment)
    variables = variables_without_compiler(environment)
    offline = ("--no-index", "--find-links", package_folder, "--only-binary=:all:")
    pip = (environment / "bin/python", "-m", "pip")
    run(*pip, "install", "-q", *offline, wheel, environment=variables)
    return variables


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_without_a_compiler(
    version: str, wheel: Path, package_folder: Path, tmp_path: Path
) -> None:
    python = interpreter(version)
    if python is None:
        assert version != RUNNING_PYTHON, "the running Python cannot make environments (ensurepip)"
        pytest.skip(f"there is no Python {version} with ensurepip in PATH or in pyenv's versions")
    environment = tmp_path / "environment"
    variables = install(python, environment, wheel, package_folder)
    commands = environment / "bin"
    smoke = shutil.copy(SMOKE, tmp_path)
    # The environment is not activated, so the command must find the Python beside itself.
    other_variables = {**variables, "PATH": "/nowhere"}
    output = run(
        commands / "farandole", "run", "-n", "2", "python", smoke, environment=other_variables
    )
    assert sorted(output.splitlines()) == [f"[{r}] rank {r} of 2: 3 0 30" for r in (0, 1)]
    version_text = run(commands / "farandole", "--version", environment=variables)
    assert wheel.name.split("-")[1] in version_text


IMPORT_PROGRAM = (
    "from farandole import core, nanobind_runtime as r; print(core.version, r.fill.__module__)"
)


def test_a_later_python_uses_the_package_of_the_backend(
    wheel: Path, package_folder: Path, tmp_path: Path
) -> None:
    python = interpreter(RUNNING_PYTHON)
    assert python is not None
    environment = tmp_path / "environment"
    variables = install(python, environment, wheel, package_folder)
    words = (environment / "bin/python", "-c", IMPORT_PROGRAM)
    version = wheel.name.split("-")[1]
    assert run(*words, environment=variables).split()[0] == version
    for backend in environment.rglob("_nb_backend_v1.*.so"):
        backend.unlink()
    completed = subprocess.run(words, check=False, capture_output=True, text=True, env=variables)
    assert "'pip install nanobind-backend'" in completed.stderr
    (tmp_path / "packages").mkdir()
    package = Path(nanobind_backend.__path__[0])
    (tmp_path / "packages" / package.name).symlink_to(package)
    variables["PYTHONPATH"] = str(tmp_path / "packages")
    assert run(*words, environment=variables).split() == [version, "nanobind_backend"]


def test_the_sdist_holds_only_what_a_build_needs(sdist: Path) -> None:
    folders = {"apps", "cmake", "include", "python", "src"}
    files = """CHANGELOG.md CMakeLists.txt CMakePresets.json LICENSE LICENSES_OF_LIBRARIES PKG-INFO
        README.md SECURITY.md pyproject.toml""".split()
    assert {path.name for path in sdist.iterdir()} == folders | set(files)
    package_folders = {"bindings", "farandole", "farandole_torch_backend"}
    assert {path.name for path in (sdist / "python").iterdir()} == package_folders


@pytest.mark.parametrize("compiler", ["clang++-19", pytest.param("g++", marks=pytest.mark.long)])
def test_the_sdist_builds_with_one_command(compiler: str, sdist: Path, tmp_path: Path) -> None:
    """The wheel contains only the nanobind backend for the running Python, so it works only with
    this version. The compiler and the depth of the folder may be those of the preset `dev`. Then
    ccache has the objects from that build."""
    settings = {"cmake.define.CMAKE_CXX_COMPILER": compiler, "build-dir": f"build/{compiler}"}
    run(
        *(sys.executable, "-m", "pip", "wheel", sdist, "--no-deps", "--wheel-dir", tmp_path),
        *("--no-build-isolation", "--config-settings=build.tool-args=-j2"),
        *package_settings.options("--config-settings", settings),
        environment={**os.environ, "CCACHE_BASEDIR": str(sdist)},
    )
    (wheel,) = tmp_path.glob("*.whl")
    tag = f"cp{RUNNING_PYTHON.replace('.', '')}"
    assert re.fullmatch(rf"farandole-[0-9.]+-{tag}-{tag}-linux_{MACHINE}\.whl", wheel.name)
    backends = [name for name in zipfile.ZipFile(wheel).namelist() if "_nb_backend" in name]
    assert backends == [name for name in sorted(BACKENDS) if f"-{tag[2:]}-" in name]


def test_the_alias_is_a_wheel_of_its_own(alias: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert alias.name == f"farandole_horovod-{version}-py3-none-any.whl"
    with zipfile.ZipFile(alias) as content:
        files = {name for name in content.namelist() if ".dist-info/" not in name}
        (metadata_name,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        needed_packages = re.findall(
            r"^Requires-Dist: ([^;\n]+)$", content.read(metadata_name).decode(), re.MULTILINE
        )
    package = ROOT / "python/horovod"
    sources = {f"horovod/{path.relative_to(package)}" for path in package.rglob("*.py")}
    assert files == sources | {"horovod/py.typed"}
    assert needed_packages == [f"farandole=={version}", "PyYAML>=6"]
    with zipfile.ZipFile(wheel) as content:
        assert [name for name in content.namelist() if "horovod" in name] == []


def link_packages(environment: Path) -> None:
    """Make the packages that are installed here visible in the environment, except Farandole. Use
    links, because PyTorch is too large to copy."""
    (target,) = environment.glob("lib/python*/site-packages")
    folders = {Path(sysconfig.get_path("purelib")), Path(yaml.__file__).parents[1]}
    folders |= {Path(path) for path in sys.path if path.endswith("site-packages")}
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        is_skipped = entry.name.startswith(("farandole", "horovod", "pip", "__pycache__"))
        if not is_skipped and entry.suffix != ".pth" and not (target / entry.name).exists():
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
    variables = variables_without_compiler(environment)
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
