"""The settings with which our scripts build the package `farandole`.

The compiler and its flags are those of the preset `dev`. So with ccache, a room is compiled only
once for the package and the preset, and the unit tests test the code that the package contains.
"""

from __future__ import annotations

SETTINGS = {
    "build-dir": "build/package-{wheel_tag}",  # as deep as build/dev, for equal relative paths
    "cmake.define.CMAKE_CXX_COMPILER": "clang++-19",
    "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
    "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
}


def options(flag: str, further: dict[str, str] | None = None) -> list[str]:
    """Return the options for these and further settings. `flag` is --config-settings for pip, and
    --config-setting for `python -m build`."""
    settings = SETTINGS | (further or {})
    return [f"{flag}={name}={value}" for name, value in settings.items()]
