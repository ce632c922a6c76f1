"""How a job ends if a worker fails, or if the user interrupts it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched import TIMEOUT_SECONDS, CommandRun, run

HERE = Path(__file__).parent
WORKER = HERE / "failing_worker.py"


@dataclass
class ExpectedFailure:
    code: int  # of the job
    error: str  # what the other ranks' error says about the failed rank
    box: str  # what the box at the end says about that rank


FAILURES = {
    "raise_error": ExpectedFailure(1, "raised ValueError: bad data", "raised ValueError: bad data"),
    "exit_normally": ExpectedFailure(
        1, "its program ended", "ended with exit code 0 while others still needed it"
    ),
    "exit_at_once": ExpectedFailure(3, "died", "exited with code 3"),
    "kill_itself": ExpectedFailure(137, "died", "was killed by signal 9 (SIGKILL)"),
    "crash": ExpectedFailure(139, "died", "was killed by signal 11 (SIGSEGV)"),
    "stop_itself_before_a_kill": ExpectedFailure(137, "died", "was killed by signal 9 (SIGKILL)"),
    "leave_job": ExpectedFailure(
        1, "it called shutdown()", "has left the job while others still needed it"
    ),
}


def box_of(job: CommandRun) -> str:
    """Return the text in the frame at the end of the job."""
    frame = re.search(
        r"╭─ farandole: the job has failed ─+╮\n(.*)╰─ exit code (\d+) ─+╯\n\Z",
        job.errors,
        re.DOTALL,
    )
    assert frame is not None, job.errors
    assert int(frame[2]) == job.process.returncode
    assert all(len(line) == 100 for line in frame[0].splitlines()), frame[0]
    return "\n".join(line[2:-2].rstrip() for line in frame[1].splitlines())


def check_survivors(job: CommandRun, failed_rank: int, ranks: range, error: str) -> None:
    """Check that the errors of these ranks name the failed rank and the cause of its failure.

    Check also that the ranks have no descriptors or shared memory of the job left.
    """
    for rank in ranks:
        if rank == failed_rank:
            continue
        lines = [line for line in job.output.splitlines() if f"survivor {rank}: " in line]
        assert len(lines) == 1, job.output + job.errors
        assert f"rank {failed_rank}" in lines[0] and error in lines[0], lines[0]
        assert f"left in {rank}: [] []" in job.output, job.output


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("failure", FAILURES)
def test_survivors_and_the_box_name_the_failed_worker(failure: str, size: int) -> None:
    expected, failed_rank = FAILURES[failure], size - 1
    job = run("run", "-n", str(size), sys.executable, str(WORKER), failure, str(failed_rank))
    assert job.process.returncode == expected.code, job.errors
    check_survivors(job, failed_rank, range(size), expected.error)
    box = box_of(job)
    assert re.match(rf"rank {failed_rank} \(pid \d+\) {re.escape(expected.box)}", box), box
    assert re.search(r"last call +barrier `[^`]+`", box), box
    # A rank that has got its error has 10 s to end; then the launcher kills it.
    exit_pattern = "exited with code 1|ended with SIGKILL"
    assert re.match(rf"the others: (rank.*: ({exit_pattern})(; )?)+", box.splitlines()[-1]), box


def test_the_box_shows_the_traceback_of_an_exception() -> None:
    job = run("run", "-n", "2", sys.executable, str(WORKER), "raise_error", "1")
    box = box_of(job)
    assert "Traceback (most recent call last):" in box, box
    assert 'raise ValueError("bad data")' in box, box
    assert re.search(r"last call +barrier `[^`]+`, finished \d+(\.\d)? m?s before the end", box), (
        box
    )


LOSS_AND_BUG = """
import farandole
from farandole import calls
farandole.init()
if farandole.rank() == 1:
    try:
        calls.barrier()
    except farandole.GroupLostError:
        pass
    raise ValueError("my own bug")
"""


def test_a_bug_after_a_loss_that_was_handled_is_the_cause() -> None:
    job = run("run", "-n", "2", sys.executable, "-c", LOSS_AND_BUG)
    box = box_of(job)
    assert re.match(r"rank 1 \(pid \d+\) raised ValueError: my own bug", box), box
    assert "Traceback (most recent call last):" in box, box


NOT_A_MEMBER = """
import farandole, os
if os.environ["FARANDOLE_RANK"] == "1":
    {before}
    raise ValueError("no such folder")
farandole.init()
farandole.shutdown()
"""


@pytest.mark.parametrize("first_line", ["pass", "farandole.init(); farandole.shutdown()"])
def test_the_box_shows_what_was_raised_outside_of_the_job(first_line: str) -> None:
    job = run("run", "-n", "2", sys.executable, "-c", NOT_A_MEMBER.format(before=first_line))
    box = box_of(job)
    assert re.match(r"rank 1 \(pid \d+\) raised ValueError: no such folder", box), box
    assert "Traceback (most recent call last):" in box, box


def test_the_box_is_plain_without_a_terminal() -> None:
    job = run("run", "-n", "1", "sh", "-c", "exit 3")
    assert "\x1b" not in job.errors
    assert re.fullmatch(r"rank 0 \(pid \d+\) exited with code 3", box_of(job))


@pytest.mark.parametrize("victim", ["foreground", "agent"])
def test_nothing_outlives_the_launcher(victim: str) -> None:
    no_rank = "-1"
    with CommandRun("run", "-n", "3", sys.executable, str(WORKER), "raise_error", no_rank) as job:
        job.read_until("stepping, started by", times=3)
        agent = int(job.output.splitlines()[-1].split()[-1])
        os.kill(job.process.pid if victim == "foreground" else agent, signal.SIGKILL)
        assert job.end() in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert job.remaining_processes() == []


MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup of 100 MB, in which the test runs its job."""
    own_group = re.search(r"^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    folder = (
        MEMORY_CGROUPS
        / (own_group[1].lstrip("/") if own_group else "")
        / f"farandole-test-{os.getpid()}"
    )
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(100 << 20))
    except OSError as error:
        pytest.skip(f"no cgroup of version 1 can be made here: {error}")
    yield folder
    deadline = time.monotonic() + TIMEOUT_SECONDS / 5
    while True:
        with suppress(OSError):  # killed processes stay in the group for a moment
            folder.rmdir()
            break
        assert time.monotonic() < deadline, "a process is left in the cgroup"
        time.sleep(0.02)


def test_the_kernel_kills_a_worker_that_is_out_of_memory(memory_cgroup: Path) -> None:
    def enter() -> None:
        (memory_cgroup / "cgroup.procs").write_text(str(os.getpid()))

    arguments = ("run", "-n", "2", sys.executable, str(WORKER), "eat_memory", "1")
    with CommandRun(*arguments, before_exec=enter) as job:
        assert job.end() == 137, job.errors
        assert job.remaining_processes() == []
    check_survivors(job, 1, range(2), "died")
    assert "was probably killed by the kernel for memory" in box_of(job), job.errors


WAIT_PATTERNS = {
    "init": r"lifecycle\.py\", line \d+, in init",
    "call": r"handle\.py\", line \d+, in wait",
}


@pytest.mark.parametrize("waits_in", WAIT_PATTERNS)
def test_an_interrupt_ends_a_job_that_waits(waits_in: str) -> None:
    with CommandRun(
        "run", "-n", "2", sys.executable, str(HERE / "waiting_worker.py"), waits_in
    ) as job:
        job.read_until("[0] waiting")
        job.read_until("[1] late")
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.end() == 128 + signal.SIGINT, job.errors
        assert job.remaining_processes() == []
    assert "KeyboardInterrupt" in job.errors, job.errors
    assert re.search(WAIT_PATTERNS[waits_in], job.errors), job.errors
    assert "Fatal" not in job.errors, job.errors
    assert "the job has failed" not in job.errors, job.errors
