"""The page about functions is correct: its cells, run in order, print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "functions.md"


MARK = "<!-- tests/cluster/test_howto.py runs these lines -->\n"


def blocks(beginning: str) -> str:
    return "\n".join(re.findall(rf"^{beginning}\n(.*?)^```", PAGE.read_text(), re.S | re.M))


def test_the_cells_print_what_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks(MARK + "```python")],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in blocks("```text").splitlines() if line]
    printed = [line for line in done.stdout.splitlines() if line]
    assert sorted(printed) == sorted(shown)
