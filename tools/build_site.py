#!/usr/bin/env python3
"""Write docs/knobs.md, and build the documentation site in build/site with Sphinx.

Every warning of Sphinx is an error (docs/conf.py). With --check, a knobs.md that would change is an
error, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE, HELP = ROOT / "build/site", ROOT / "build/help"
KNOBS = ROOT / "docs/knobs.md"
COMMANDS = ("run", "status", "doctor", "bench", "secret", "knobs", "completion")


def output_of(*words: str) -> str:
    program = str(Path(sys.executable).with_name("farandole"))
    return subprocess.run([program, *words], check=True, text=True, stdout=subprocess.PIPE).stdout


def update_knobs_page(only_check: bool) -> bool:
    """Write docs/knobs.md from the command's table, unless `only_check`. Return whether the page is
    equal to the table."""
    table = output_of("knobs", "--markdown")
    text = f"# Settings\n\nWritten by `./dev docs` from `include/farandole/knobs.h`.\n\n{table}"
    if not only_check:
        KNOBS.write_text(text)
    return KNOBS.exists() and KNOBS.read_text() == text


def write_help() -> None:
    HELP.mkdir(parents=True, exist_ok=True)
    (HELP / "farandole.txt").write_text(output_of("--help"))
    for command in COMMANDS:
        (HELP / f"{command}.txt").write_text(output_of(command, "--help"))


def main(only_check: bool) -> int:
    if not update_knobs_page(only_check):
        print("docs/knobs.md does not match the knobs table: run ./dev docs", file=sys.stderr)
        return 1
    write_help()
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    if subprocess.run([*sphinx, str(ROOT / "docs"), str(SITE)], check=False).returncode != 0:
        return 1
    print(f"the site is in {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(only_check="--check" in sys.argv[1:]))
