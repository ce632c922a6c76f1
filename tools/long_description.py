"""Make the links of README work on the package index, which does not show the other files of the
repository.

`address` in pyproject.toml says where the files of the repository are shown. If it is empty, the
files are shown nowhere, so links to files become plain text.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

# A Markdown link or image whose target is a file of the repository, not a URL or an anchor on this
# page.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def address_in(pyproject: str) -> str:
    """Return the setting `address` of [tool.farandole]."""
    match = re.search(r'^\[tool\.farandole\]\n(?:#.*\n)*address = "(.*)"$', pyproject, re.MULTILINE)
    if match is None:
        raise SystemExit("[dev] pyproject.toml has no `address` in [tool.farandole]")
    return match[1]


def with_absolute_links(text: str, address: str) -> str:
    """Return the text with absolute links. In `address`, {kind} is raw for images and blob for
    other files. If `address` is empty, leave only the texts of the links."""

    def absolute_link(link: re.Match[str]) -> str:
        image, shown, path = link.groups()
        if not address:
            return shown
        return f"{image}[{shown}]({address.format(kind='raw' if image else 'blob')}{path})"

    return _LINK.sub(absolute_link, text)


def metadata_with_absolute_links(metadata: str, address: str) -> str:
    """Return a package's metadata with absolute links in its description, which is the body."""
    headers, separator, body = metadata.partition("\n\n")
    return headers + separator + with_absolute_links(body, address)


def change_sdist(sdist: Path, address: str) -> None:
    """Change the metadata in an sdist."""
    with tempfile.NamedTemporaryFile(dir=sdist.parent, delete=False) as out:
        with tarfile.open(sdist) as old, tarfile.open(fileobj=out, mode="w:gz") as new:
            for member in old:
                content = old.extractfile(member)
                data = b"" if content is None else content.read()
                if Path(member.name).name == "PKG-INFO" and member.name.count("/") == 1:
                    data = metadata_with_absolute_links(data.decode(), address).encode()
                    member.size = len(data)
                new.addfile(member, BytesIO(data) if member.isfile() else None)
        Path(out.name).chmod(0o644)
        Path(out.name).replace(sdist)


def change_wheel(wheel: Path, address: str) -> None:
    """Change the metadata in a wheel, and its checksum."""
    # auditwheel is installed only in a build, so it is not imported at the top of this file.
    from auditwheel.wheeltools import InWheelCtx  # type: ignore[import-untyped]  # noqa: PLC0415

    with InWheelCtx(wheel, wheel):
        (metadata,) = Path().glob("*.dist-info/METADATA")
        metadata.write_text(metadata_with_absolute_links(metadata.read_text(), address))
