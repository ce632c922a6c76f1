"""Each test lets one system call fail, be interrupted, or do less than requested.

The library shims/faults.c puts a fault into the n-th such call of the launcher or of one worker. If
a call is interrupted, the results must stay the same. If a call fails, an error must say why. The
program is small_worker.py, whose output depends on every bit of its results.
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
from launched import CommandRun, run

HERE = Path(__file__).parent
# The ranks ignore SIGTERM from the beginning. So if a fault ends one of them before it has joined
# the job, the other one has enough time to show its own error.
SHORT_JOB = (
    *("sh", "-c", 'trap "" TERM; exec "$0" "$@"'),
    *(sys.executable, str(HERE / "small_worker.py"), "make_few_calls"),
)
# A test injects this number of faults, each in another job. The job makes some hundred such calls.
# The printed seed chooses the calls that get a fault.
FAULTS_PER_TEST = 8


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed to build the shim"
    library = tmp_path_factory.mktemp("shims") / "faults.so"
    source = HERE / "shims" / "faults.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class InjectedRun:
    """One run of the short job, with a fault in the call with this number. With the number 0, there
    is no fault, and the run only counts the calls."""

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
        self.job: CommandRun = run("run", "-n", "2", *SHORT_JOB, environment=variables)
        self.calls, self.faults = struct.unpack("qq", counters.read_bytes())
        self.description = (
            f"{kind} at call {number} of {target}:\n{self.job.output}{self.job.errors}"
        )

    def results(self) -> list[str]:
        return sorted(re.findall(r"\[\d\] result \w+", self.job.output))


InjectFault = Callable[[str, str, int], InjectedRun]


@pytest.fixture
def inject(shim: Path, tmp_path: Path) -> InjectFault:
    return lambda target, kind, number: InjectedRun(
        shim, tmp_path / "counters", target, kind, number
    )


def random_call_numbers(calls: int) -> list[int]:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    return sorted(random.Random(seed).sample(range(1, calls + 1), min(FAULTS_PER_TEST, calls)))


HARMLESS_FAULTS = [
    *[(target, kind) for target in ("launcher", "1") for kind in ("EINTR", "EAGAIN", "ENOBUFS")],
    ("launcher", "SHORT"),
]


@pytest.mark.parametrize(("target", "kind"), HARMLESS_FAULTS)
def test_an_interrupted_call_changes_nothing(inject: InjectFault, target: str, kind: str) -> None:
    run_without_fault = inject(target, kind, 0)
    assert run_without_fault.job.process.returncode == 0, run_without_fault.description
    assert run_without_fault.calls > 0, f"{target} never makes a call that can fail with {kind}"
    assert len(run_without_fault.results()) == 2
    faults = 0
    for number in random_call_numbers(run_without_fault.calls):
        run_with_fault = inject(target, kind, number)
        faults += run_with_fault.faults
        assert run_with_fault.job.process.returncode == 0, run_with_fault.description
        assert run_with_fault.results() == run_without_fault.results(), run_with_fault.description
    assert faults > 0, "no fault was ever put in"


REASON_WORDS = (
    "Too many open files|Cannot allocate memory|No space left|temporarily unavailable|ulimit"
    "|max_user_watches"
)


@pytest.mark.parametrize("target", ["launcher", "0", "1"])
def test_a_rejected_call_is_reported(inject: InjectFault, target: str) -> None:
    run_without_fault = inject(target, "LIMIT", 0)
    faults = 0
    for number in random_call_numbers(run_without_fault.calls):
        run_with_fault = inject(target, "LIMIT", number)
        faults += run_with_fault.faults
        code = run_with_fault.job.process.returncode
        if code == 0:  # the job succeeded without this call
            assert run_with_fault.results() == run_without_fault.results(), (
                run_with_fault.description
            )
            continue
        assert code in (1, 126, 127), run_with_fault.description
        assert re.search(REASON_WORDS, run_with_fault.job.errors), run_with_fault.description
        assert "bug in the engine" not in run_with_fault.job.errors, run_with_fault.description
        if target != "launcher":  # both ranks must report the failure
            other_rank = "1" if target == "0" else "0"
            pattern = rf"\[{other_rank}\] .*rank {target}\b"
            assert re.search(pattern, run_with_fault.job.errors), run_with_fault.description
    assert faults > 0, "no fault was ever put in"


def test_many_signals_change_nothing() -> None:
    job = run(
        "run", "-n", "2", sys.executable, str(HERE / "small_worker.py"), "make_calls_under_signals"
    )
    assert job.process.returncode == 0, job.errors
    assert job.output.count("survived all signals") == 2, job.output
    assert len(set(re.findall(r"result (\w+)", job.output))) == 1, job.output
