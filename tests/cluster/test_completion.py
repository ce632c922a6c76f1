"""`farandole completion SHELL`: the script completes commands, options and files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from launched import run

COMMANDS = {"run", "status", "bench", "doctor", "secret", "knobs", "completion"}


def script(shell: str) -> str:
    job = run("completion", shell)
    assert (job.process.returncode, job.errors) == (0, "")
    return job.output


def options(*command: str) -> set[str]:
    """Return the options that the help of a command shows, without their values."""
    lines = re.findall(r"^  (-\S+(?: *,? *-\S+)*)", run(*command, "--help").output, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"(?<![\w-])--?[\w-]+", line)}


def bash_completions(*words: str) -> set[str]:
    """Return what the script offers for the last word."""
    program = f"""{script("bash")}
        COMP_WORDS=(farandole "$@"); COMP_CWORD=$#; _farandole; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    completed = subprocess.run(
        ["bash", "-c", program, "bash", *words], check=True, capture_output=True, text=True
    )
    assert completed.stderr == ""
    return set(completed.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options() -> None:
    assert bash_completions("") == COMMANDS | options()
    assert bash_completions("do") == {"doctor"}
    for command in COMMANDS:
        assert bash_completions(command, "-") == options(command)
    assert bash_completions("run", "-n", "2", "--stall-l") == {"--stall-limit"}
    assert bash_completions("run", "train") == set()  # so bash completes a file


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_the_script(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for command in COMMANDS:
        assert command in text
        for name in options(command):
            word = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            assert (word if shell == "fish" else name) in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} to check the syntax")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run([shell, "--no-execute", file], check=True)


@pytest.mark.parametrize("words", [[], ["ksh"]])
def test_an_unknown_shell_is_rejected(words: list[str]) -> None:
    job = run("completion", *words)
    assert (job.process.returncode, job.output) == (2, "")
    assert job.errors == (
        f'farandole completion: there is no completion for the shell "{" ".join(words)}"; give '
        "bash, zsh or fish, for example `farandole completion bash`\n"
        "See `farandole completion --help`.\n"
    )
