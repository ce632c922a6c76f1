#!/usr/bin/env python3
"""Plot the cost of agreement against the number of members: `./dev sim --scale | plot_scale.py`.

Writes `docs/agreement_messages.svg` and `docs/agreement_bytes.svg`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import svg_plot

DOCS = Path(__file__).resolve().parents[1] / "docs"
UNITS = svg_plot.Units(across=lambda power: str(1 << power), up=lambda power: f"{10**power:,}")


def curve_name(members: int, hosts: str, way: str) -> str | None:
    """Return the name of the curve of a row of the table; None if the row is not plotted."""
    if way == "Horovod, uncached, MPI (model)":
        return "Horovod (model)"
    if way != "learning":
        return None
    return "one host" if hosts == "1" else f"{members // int(hosts)} members a host"


def curves_of(table: str, column: int) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not cells[0].isdigit() or not cells[column].isdigit():
            continue
        name = curve_name(int(cells[0]), cells[1], cells[2])
        if name:
            curves[name][int(cells[0])] = int(cells[column])
    return curves


def main() -> None:
    table = sys.stdin.read()
    for name, column, title in (
        ("messages", 4, "messages of the busiest member, by members: learning one step"),
        ("bytes", 7, "bytes of the coordinator, by members: learning one step"),
    ):
        plot = svg_plot.plot(title, curves_of(table, column), UNITS)
        (DOCS / f"agreement_{name}.svg").write_text(plot)


if __name__ == "__main__":
    main()
