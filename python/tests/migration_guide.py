"""The tables of the migration guide."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"


def rows(heading: str) -> list[tuple[list[str], str]]:
    """Return the rows of the table below a heading.

    For each row, the list has a pair: the words in backquotes in the first cell, and the text of
    the second cell.
    """
    sections = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(heading + "\n")]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(re.findall("`([^`]+)`", first_cell), second_cell) for first_cell, second_cell in cells]
