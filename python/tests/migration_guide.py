"""The tables of the migration guide."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"


def rows(heading: str) -> list[tuple[list[str], str]]:
    """Return, for each row of the table below a heading, what its first cell has in `code`, and the
    text of its second."""
    text = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    (part,) = [part for part in text if part.startswith(heading + "\n")]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(re.findall("`([^`]+)`", first), second) for first, second in cells]
