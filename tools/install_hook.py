#!/usr/bin/env python3
"""Link tools/hooks/pre-commit into this clone's own folder of hooks.

If git's setting core.hooksPath names a folder, the hooks in it belong to the user, and the script
does not change them. A folder that is not a git repository gets no hook. The script succeeds in
both cases.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )


def main() -> None:
    if not (ROOT / ".git").exists():
        return
    answer = git("rev-parse", "--git-common-dir")
    if answer.returncode != 0:
        print(f"no git hook, because git says: {answer.stderr.partition(chr(10))[0]}")
        return
    if git("config", "--get", "core.hooksPath").returncode == 0:
        print("no git hook, because core.hooksPath is set: call tools/hooks/pre-commit from there")
        return
    common = ROOT / answer.stdout.strip()
    # All worktrees of a clone share its hooks, and a worktree may be deleted. So the link points to
    # the file in the clone's main worktree.
    our_hook = common.parent / "tools/hooks/pre-commit"
    hook = common / "hooks/pre-commit"
    if our_hook.exists() and not hook.exists() and not hook.is_symlink():
        hook.parent.mkdir(parents=True, exist_ok=True)
        hook.symlink_to(os.path.relpath(our_hook, hook.parent))
        print("linked the git hook tools/hooks/pre-commit")


if __name__ == "__main__":
    main()
