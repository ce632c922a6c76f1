"""The code blocks of README and of the pages in docs, and which test runs each of them.

test_pages.py runs the blocks of `python` and `sh`, unless a comment on the line before the block
says otherwise:

    <!-- tests/cluster/test_howto.py runs these lines -->
    <!-- not run: it installs packages -->

A page whose first line is `<!-- no block of this page is run: ... -->` is left out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "sh")
FENCE_PATTERN = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
RUNNER_PATTERN = re.compile(r"<!-- (\S+) runs these lines -->")
REASON_PATTERN = re.compile(r"<!-- not run: \S.+ -->")
PAGE_REASON_PATTERN = re.compile(r"<!-- no block of this page is run: \S.+ -->")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # the number of the first line of code
    language: str
    code: str
    comment: str  # the comment on the line before the block, or empty

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runner(self) -> str | None:
        match = RUNNER_PATTERN.fullmatch(self.comment)
        return match[1] if match else None

    @property
    def is_run_here(self) -> bool:
        return not self.comment

    def commands(self) -> list[str]:
        """Return the lines of a `sh` block without their comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [text for line in lines if (text := re.sub(r"(^|\s)#.*", "", line).strip())]


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text()
    if PAGE_REASON_PATTERN.match(text):
        return
    for fence in FENCE_PATTERN.finditer(text):
        if fence[2] in LANGUAGES:
            before = text[: fence.start()].splitlines()
            comment = before[-1].strip() if before else ""
            yield Block(
                str(path.relative_to(ROOT)),
                len(before) + 2,
                fence[2],
                textwrap.dedent(fence[3]),
                comment if comment.startswith("<!--") else "",
            )


def all_blocks() -> list[Block]:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [block for page in pages for block in blocks_of(page)]
