"""Test the functions of long_description.py."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import long_description

TEXT = """[a](docs/a.md#part) and [two
lines](b.md) ![plot](c.svg) [site](https://example.org/x) [here](#part)"""
ADDRESS = "https://example.org/{kind}/main/"


def test_links_become_absolute() -> None:
    changed = long_description.with_absolute_links(TEXT, ADDRESS)
    assert changed == (
        "[a](https://example.org/blob/main/docs/a.md#part) and [two\n"
        "lines](https://example.org/blob/main/b.md) ![plot](https://example.org/raw/main/c.svg) "
        "[site](https://example.org/x) [here](#part)"
    )


def test_links_become_text_without_an_address() -> None:
    changed = long_description.with_absolute_links(TEXT, "")
    assert changed == "a and two\nlines plot [site](https://example.org/x) [here](#part)"


def test_the_readme_has_no_relative_link_left() -> None:
    root = Path(__file__).resolve().parents[1]
    address = long_description.address_in((root / "pyproject.toml").read_text())
    for used in (address, ADDRESS):
        changed = long_description.with_absolute_links((root / "README.md").read_text(), used)
        assert long_description.with_absolute_links(changed, ADDRESS) == changed
        assert "](docs/" not in changed


def test_an_sdist_is_changed(tmp_path: Path) -> None:
    sdist = tmp_path / "p-1.tar.gz"
    files = {"p-1/PKG-INFO": b"Name: p\n\n[a](b.md)", "p-1/README.md": b"[a](b.md)"}
    with tarfile.open(sdist, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    long_description.change_sdist(sdist, "")
    with tarfile.open(sdist) as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    assert found == {"p-1/PKG-INFO": b"Name: p\n\na", "p-1/README.md": b"[a](b.md)"}
