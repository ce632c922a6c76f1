"""Stubs for the CUDA libraries that a CUDA build of torch links to.

Most builds of torch on the package index are for CUDA. They load gigabytes of libraries that a test
on CPUs does not need, so this module makes small libraries of the same names in their place. Their
functions do nothing, except the function that counts devices, which returns an error. So torch
finds no device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
NO_DEVICE = 100  # cudaErrorNoDevice
# These libraries of the system, and symbols of the interpreter, get no stubs, because every process
# has them.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util)|ld-linux.*)\.so\.\d+")
PYTHON_NAME = re.compile(r"_?Py[A-Z_]")


def make_stubs(libraries: Path) -> list[str]:
    """`libraries` is torch's folder of shared libraries. Make the missing libraries there, because
    the loader looks for them there. Return their names."""
    libraries_of_torch = sorted(path for path in libraries.iterdir() if ".so" in path.name)
    needed_names = {
        name for path in libraries_of_torch for name in NEEDED.findall(_text("readelf", "-d", path))
    }
    present_names = {path.name for path in libraries_of_torch}
    missing_names = sorted(
        n for n in needed_names - present_names if not SYSTEM_LIBRARIES.fullmatch(n)
    )
    functions, versions = _undefined(libraries_of_torch), _versions(libraries_of_torch)
    for name in missing_names:
        # Only torch knows which library has a function. So we put a function that has no version
        # into each library whose functions have no versions.
        needed_versions = versions.get(name, {""})
        stubs = {version: _names(functions, version) for version in needed_versions}
        _compile(libraries / name, stubs)
    return missing_names


def _undefined(libraries: Sequence[Path]) -> set[tuple[str, str]]:
    """Return the functions, each with its version, that these libraries need and that are missing:
    neither these libraries nor those of the system define them."""
    defined_symbols = _symbols("--defined-only", [*libraries, *_system_libraries(libraries)])
    names = {name for name, _ in defined_symbols}
    undefined = _symbols("--undefined-only", libraries)
    return {pair for pair in undefined if pair[0] not in names and not PYTHON_NAME.match(pair[0])}


def _versions(libraries: Sequence[Path]) -> dict[str, set[str]]:
    """Return, for each library that these libraries need, the versions of the symbols that they
    need from it."""
    versions_by_library: dict[str, set[str]] = {}
    for line in "".join(_text("readelf", "-VW", path) for path in libraries).splitlines():
        if match := re.search(r"File: (\S+)", line):
            versions = versions_by_library.setdefault(match[1], set())
        elif match := re.search(r"Name: (\S+) +Flags: none +Version:", line):
            versions.add(match[1])
    return versions_by_library


def _names(functions: Iterable[tuple[str, str]], version: str) -> list[str]:
    return sorted(name for name, its_version in functions if its_version == version)


def _symbols(kind: str, paths: Iterable[Path]) -> set[tuple[str, str]]:
    """Return the symbols of these libraries, except the weak ones, each with its version."""
    lines = [line for path in paths for line in _text("nm", "-D", kind, path).splitlines()]
    words = [line.split() for line in lines if line]
    parts = [word[-1].replace("@@", "@").partition("@") for word in words if word[-2] not in "wv"]
    return {(name, version) for name, _, version in parts}


def _system_libraries(libraries: Sequence[Path]) -> set[Path]:
    names_and_paths = re.findall(
        r"(\S+) => (/\S+)", "".join(_text("ldd", path) for path in libraries)
    )
    return {Path(path) for name, path in names_and_paths if SYSTEM_LIBRARIES.fullmatch(name)}


def _compile(library: Path, functions: dict[str, list[str]]) -> None:
    """Compile a library with these functions, by version."""
    names = [name for names in functions.values() for name in names]
    values = {name: NO_DEVICE if name == "cudaGetDeviceCount" else 0 for name in names}
    code = "".join(f"long {name}(void) {{ return {value}; }}\n" for name, value in values.items())
    options = f"-shared -fPIC -w -Wl,-soname,{library.name} -x c - -o".split()
    nodes = {version: " ".join(f"{n};" for n in names) for version, names in functions.items()}
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        if nodes.keys() != {""}:
            for version, globals in nodes.items():
                script.write(f"{version} {{ {f'global: {globals}' if globals else ''} }};\n")
            script.flush()
            options.insert(0, f"-Wl,--version-script={script.name}")
        subprocess.run(["cc", *options, library], input=code, text=True, check=True)


def _text(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
