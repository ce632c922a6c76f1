"""Test that the package is compiled as the preset `dev` is."""

from __future__ import annotations

import json
from pathlib import Path

from package_settings import SETTINGS, options

ROOT = Path(__file__).resolve().parent.parent


def test_the_settings_are_those_of_the_preset_dev() -> None:
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    by_name = {preset["name"]: preset["cacheVariables"] for preset in presets}
    dev = by_name["base"] | by_name["dev"]
    for name, value in SETTINGS.items():
        if name.startswith("cmake.define."):
            assert dev[name.removeprefix("cmake.define.")] == value
    assert dev["CMAKE_BUILD_TYPE"] == "Release" and "CMAKE_CXX_FLAGS" not in dev
    assert SETTINGS["build-dir"].count("/") == 1


def test_further_settings_come_last() -> None:
    words = options("--config-setting", {"build.tool-args": "-j2", "build-dir": "build/other"})
    assert "--config-setting=build.tool-args=-j2" in words
    assert "--config-setting=build-dir=build/other" in words
    assert len(words) == len(SETTINGS) + 1
