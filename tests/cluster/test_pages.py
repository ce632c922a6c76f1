"""The code in README and docs works. This file runs each block, unless a comment names another test
that runs the block, or says why no test runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from job import command, run_command
from page_blocks import REASON_PATTERN, ROOT, all_blocks

BLOCKS = all_blocks()
COMMANDS = sorted(
    {
        line
        for block in BLOCKS
        if block.language == "sh" and block.is_run_here
        for line in block.commands()
    }
)


def test_each_comment_before_a_block_names_a_test_or_a_reason() -> None:
    for block in BLOCKS:
        if block.runner is not None:
            assert (ROOT / block.runner).is_file(), block.place
        elif not block.is_run_here:
            assert REASON_PATTERN.fullmatch(block.comment), f"{block.place}: {block.comment}"


def test_the_python_blocks_run_on_two_ranks(tmp_path: Path) -> None:
    """Run each block in a namespace of its own, with the names that page_program.py defines."""
    program = Path(__file__).with_name("page_program.py")
    words = command(2, sys.executable, program, tmp_path)
    job = run_command(words, timeout=600)
    assert job.code == 0, job.text
    run_here = [block for block in BLOCKS if block.language == "python" and block.is_run_here]
    assert job.text.count("has run") == 2 * len(run_here) > 0, job.text


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_run(line: str, tmp_path: Path) -> None:
    """Run each command in a folder with README's program as train.py."""
    (program,) = (b.code for b in BLOCKS if b.page == "README.md" and b.language == "python")
    (tmp_path / "train.py").write_text(program)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = run_command(["sh", "-ec", f"cd '{tmp_path}'; {line}"], {"PATH": path})
    assert job.code == 0, job.text
