#!/usr/bin/env python3
"""Build the fuzz targets of tests/fuzz and run each for some seconds, with its corpus.

The address and undefined-behaviour sanitizers watch the run. The script fails if a target crashes.
Then build/fuzz contains a file with the input of the crash, and `build/fuzz/tests/fuzz/NAME_fuzz
FILE` runs this input again. The inputs that a run finds stay in build/fuzz/corpus, and the next run
begins with these inputs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "tests/fuzz/corpus"
BUILD = ROOT / "build/fuzz"
SLOWEST_INPUT_S = 10


def run(*command: str | Path) -> int:
    return subprocess.run(command, check=False, cwd=ROOT).returncode


def fuzz(name: str, seconds: int) -> bool:
    """Run one target, and return whether it ran without a crash."""
    corpus = BUILD / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    options = (
        f"-max_total_time={seconds}",
        f"-timeout={SLOWEST_INPUT_S}",
        f"-artifact_prefix={BUILD}/{name}-",
        "-print_final_stats=1",
        "-verbosity=0",
    )
    print(f"[fuzz] {name} for {seconds} s", flush=True)
    return run(BUILD / f"tests/fuzz/{name}_fuzz", *options, corpus, SEEDS / name) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=6, help="for each target (default: 6)")
    arguments = parser.parse_args()
    if run("cmake", "--preset", "fuzz") or run("cmake", "--build", BUILD, "--target", "fuzz"):
        sys.exit(1)
    names = sorted(folder.name for folder in SEEDS.iterdir())
    failed = [name for name in names if not fuzz(name, arguments.seconds)]
    print(f"fuzz: {len(names)} targets, failed: {', '.join(failed) or 'none'}")
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
