"""System calls that fail, are interrupted or do less than asked for, one at a time.

A shim (shims/faults.c) puts a fault into the n-th call of the launcher or of one worker. An
interrupted call changes no result. A call that the system rejects leads to an error that says so.
The program is small_worker.py, whose output depends on every bit of its results.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Launched, run

HERE = Path(__file__).parent
SHORT = (sys.executable, str(HERE / "small_worker.py"), "short")
ROUNDS = 8  # how many faults a test tries, out of some hundred calls; the printed seed chooses them


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed to build the shim"
    library = tmp_path_factory.mktemp("shims") / "faults.so"
    source = HERE / "shims" / "faults.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class InjectedRun:
    """One run of the short job with a fault in one call; with number 0, calls are only counted."""

    def __init__(self, shim: Path, counters: Path, target: str, kind: str, number: int) -> None:
        counters.write_bytes(bytes(16))
        variables = {
            "LD_PRELOAD": str(shim),
            "FAULT_TARGET": target,
            "FAULT_KIND": kind,
            "FAULT_NUMBER": str(number),
            "FAULT_COUNTERS": str(counters),
            "FARANDOLE_START_TIMEOUT": "20",
        }
        self.job: Launched = run("run", "-n", "2", *SHORT, environment=variables)
        self.calls, self.faults = struct.unpack("qq", counters.read_bytes())
        self.description = (
            f"{kind} at call {number} of {target}:\n{self.job.output}{self.job.errors}"
        )

    def results(self) -> list[str]:
        return sorted(re.findall(r"\[\d\] result \w+", self.job.output))


Inject = Callable[[str, str, int], InjectedRun]


@pytest.fixture
def inject(shim: Path, tmp_path: Path) -> Inject:
    return lambda target, kind, number: InjectedRun(
        shim, tmp_path / "counters", target, kind, number
    )


def random_call_numbers(calls: int) -> list[int]:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    return sorted(random.Random(seed).sample(range(1, calls + 1), min(ROUNDS, calls)))


HARMLESS = [
    *[(target, kind) for target in ("launcher", "1") for kind in ("EINTR", "EAGAIN", "ENOBUFS")],
    ("launcher", "SHORT"),
]


@pytest.mark.parametrize(("target", "kind"), HARMLESS)
def test_an_interrupted_call_changes_nothing(inject: Inject, target: str, kind: str) -> None:
    undisturbed = inject(target, kind, 0)
    assert undisturbed.job.process.returncode == 0, undisturbed.description
    assert undisturbed.calls > 0, f"{target} never makes a call that can fail with {kind}"
    assert len(undisturbed.results()) == 2
    faults = 0
    for number in random_call_numbers(undisturbed.calls):
        disturbed = inject(target, kind, number)
        faults += disturbed.faults
        assert disturbed.job.process.returncode == 0, disturbed.description
        assert disturbed.results() == undisturbed.results(), disturbed.description
    assert faults > 0, "no fault was ever put in"


REASONS = (
    "Too many open files|Cannot allocate memory|No space left|temporarily unavailable|ulimit"
    "|max_user_watches"
)


@pytest.mark.parametrize("target", ["launcher", "0", "1"])
def test_a_rejected_call_is_reported(inject: Inject, target: str) -> None:
    undisturbed = inject(target, "LIMIT", 0)
    faults = 0
    for number in random_call_numbers(undisturbed.calls):
        rejected = inject(target, "LIMIT", number)
        faults += rejected.faults
        code = rejected.job.process.returncode
        if code == 0:  # the launcher or the engine had an alternative to this call
            assert rejected.results() == undisturbed.results(), rejected.description
            continue
        assert code in (1, 126, 127), rejected.description
        assert re.search(REASONS, rejected.job.errors), rejected.description
        assert "bug in the engine" not in rejected.job.errors, rejected.description
        if target != "launcher":  # the other rank must report it, too
            other = "1" if target == "0" else "0"
            pattern = rf"\[{other}\] .*rank {target}\b"
            assert re.search(pattern, rejected.job.errors), rejected.description
    assert faults > 0, "no fault was ever put in"


def test_many_signals_change_nothing() -> None:
    job = run("run", "-n", "2", sys.executable, str(HERE / "small_worker.py"), "signals")
    assert job.process.returncode == 0, job.errors
    assert job.output.count("survived all signals") == 2, job.output
    assert len(set(re.findall(r"result (\w+)", job.output))) == 1, job.output
