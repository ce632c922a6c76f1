"""Tell whether the build of a preset must be configured."""

from __future__ import annotations

from pathlib import Path


def is_configured(root: Path, preset: str) -> bool:
    """Return whether build/PRESET was configured after the last change of the presets. If not, its
    cache may have values that the preset no longer sets, so it must be configured again."""
    build_file, presets = root / "build" / preset / "build.ninja", root / "CMakePresets.json"
    return build_file.exists() and build_file.stat().st_mtime >= presets.stat().st_mtime
