from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stages import Stages, chosen_stages

HERE = Path(__file__).resolve().parent


def nothing() -> None:
    pass


def test_a_name_may_be_that_of_a_group() -> None:
    stages: Stages = dict.fromkeys(("unit", "tsan", "model"), nothing)
    record = {name: stages[name] for name in ("tsan", "model")}
    assert list(chosen_stages(["model", "unit"], stages, {"record": record})) == ["model", "unit"]
    assert list(chosen_stages(["unit", "record"], stages, {"record": record})) == [
        "unit",
        "tsan",
        "model",
    ]
    with pytest.raises(SystemExit, match="'tsam'; there are: record unit tsan model"):
        chosen_stages(["unit", "tsam"], stages, {"record": record})


def run(stages: str, logs: Path, limit_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run stages in a process of their own, because they redirect the descriptors of their
    process."""
    program = textwrap.dedent(
        """
        import subprocess, sys
        from pathlib import Path
        from stages import run_stages
        def shell(text):
            return lambda: subprocess.run(["sh", "-c", text], check=False)
        def fail(text):
            shell(text)()
            raise SystemExit("it failed")
        sys.exit(run_stages({STAGES}, Path(sys.argv[1]), float(sys.argv[2])))
        """
    )
    command = [sys.executable, "-c", program.replace("STAGES", stages), str(logs), str(limit_s)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, errors="replace", cwd=HERE
    )


def test_output_is_shown_in_order_and_kept(tmp_path: Path) -> None:
    done = run("'one': shell('echo a; echo b >&2; echo c'), 'two': shell('echo d')", tmp_path)
    assert done.stdout.startswith("[dev] === one\na\nb\nc\n[dev] === two\nd\n\n  one ")
    assert done.stdout.endswith("2 passed, 0 failed\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "one.log").read_text() == "a\nb\nc\n"
    assert re.search(r"\n  one +ok +[\d.]+ s +[\d.]+ cores\n", done.stdout)


def test_the_end_of_a_failed_stage_is_repeated_below_the_table(tmp_path: Path) -> None:
    done = run("'bad': lambda: fail('seq 1000'), 'good': shell('echo fine')", tmp_path)
    _, end = done.stdout.split("  good ")
    assert "fine" in done.stdout
    assert "\n998\n999\n1000\nit failed\n\n1 passed, 1 failed\n" in end
    assert "\n941\n" not in end and "\n942\n" in end
    assert "fine" not in end
    assert done.returncode == 1


def test_no_stage_begins_after_the_limit(tmp_path: Path) -> None:
    stages = "'slow': shell('sleep 0.2'), 'fuzz': shell('echo no'), 'tsan': shell('echo no')"
    done = run(stages, tmp_path, limit_s=0.1)
    assert "\n  fuzz        not run\n  tsan        not run\n" in done.stdout
    end = "1 passed, 0 failed, not run after 0 minutes: ./dev test fuzz tsan\n"
    assert done.stdout.endswith(end)
    assert "no\n" not in done.stdout
    assert done.returncode == 0


def test_errors_of_compilers_are_repeated_if_they_are_far_from_the_end(tmp_path: Path) -> None:
    output = "echo 'a.cc:1: error: far'; seq 100; echo 'b.cc:2: error: near'"
    done = run(f"""'bad': lambda: fail({output!r})""", tmp_path)
    _, end = done.stdout.split("[dev] === bad FAILED\n")
    assert end.startswith("a.cc:1: error: far\nit ended with\n43\n")
    assert (end.count("far"), end.count("near")) == (1, 1)


def test_output_that_is_not_text_is_repeated_too(tmp_path: Path) -> None:
    done = run(r"'bad': lambda: fail('printf \"\\377x\"')", tmp_path)
    assert done.stdout.count("x") == 2


def test_a_process_that_stays_does_not_hold_up_the_stages(tmp_path: Path) -> None:
    end = tmp_path / "end"
    stays = f"(until [ -e {end} ]; do sleep 0.1; done) & echo a"
    done = run(f"'one': shell('{stays}'), 'two': shell('echo b; touch {end}')", tmp_path)
    assert "[dev] a process of this stage still runs\n[dev] === two\nb\n" in done.stdout


def test_an_unforeseen_error_leaves_the_descriptors_as_they_were(tmp_path: Path) -> None:
    done = run("'one': lambda: 1 / 0", tmp_path)
    assert done.stdout == "[dev] === one\n"
    assert "ZeroDivisionError" in done.stderr
