"""Test when a build must be configured."""

from __future__ import annotations

import os
from pathlib import Path

from presets import is_configured


def test_a_build_is_configured_after_each_change_of_the_presets(tmp_path: Path) -> None:
    presets, ninja = tmp_path / "CMakePresets.json", tmp_path / "build/dev/build.ninja"
    presets.touch()
    assert not is_configured(tmp_path, "dev")
    ninja.parent.mkdir(parents=True)
    ninja.touch()
    os.utime(presets, (100, 100))
    for time, configured in ((99, False), (100, True), (101, True)):
        os.utime(ninja, (time, time))
        assert is_configured(tmp_path, "dev") == configured
    assert not is_configured(tmp_path, "asan")
