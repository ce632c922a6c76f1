"""The page docs/howto/functions.md is correct: its cells, run in order, print what the page
shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "functions.md"


TEST_COMMENT = "<!-- tests/cluster/test_howto.py runs these lines -->\n"


def blocks(message_start: str) -> str:
    return "\n".join(re.findall(rf"^{message_start}\n(.*?)^```", PAGE.read_text(), re.S | re.M))


def test_the_cells_print_what_is_shown() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", blocks(TEST_COMMENT + "```python")],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    shown_lines = [line for line in blocks("```text").splitlines() if line]
    printed_lines = [line for line in completed.stdout.splitlines() if line]
    assert sorted(printed_lines) == sorted(shown_lines)
