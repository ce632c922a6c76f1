"""The launcher reports a rank that makes the others wait, is stopped, or never calls init()."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import CommandRun, environment_of

WORKER = Path(__file__).with_name("stalling_worker.py")
ONE_SECOND = {"FARANDOLE_STALL_WARNING": "1"}
# No test takes as long as this time, so the launcher prints no warning.
NO_WARNING = {"FARANDOLE_STALL_WARNING": "1000"}


def job(
    stall: str, size: int, folder: Path, environment: dict[str, str] | None = None
) -> CommandRun:
    return CommandRun(
        *("run", "-n", str(size), sys.executable, str(WORKER), stall, str(folder)),
        environment={**ONE_SECOND, "OMP_NUM_THREADS": "1", **(environment or {})},
    )


def read_errors_until(launched: CommandRun, pattern: str) -> re.Match[str]:
    assert launched.process.stderr is not None
    while not (match := re.search(pattern, launched.errors)):
        line = launched.process.stderr.readline()
        assert line, f"the end came before {pattern!r}:\n{launched.output}{launched.errors}"
        launched.errors += line
    return match


def continue_late_rank(launched: CommandRun, folder: Path) -> None:
    """Let the late rank go on, and check that the job succeeds."""
    (folder / "go").touch()
    expect_success(launched, folder)


def expect_success(launched: CommandRun, folder: Path) -> None:
    (folder / "end").touch()
    assert launched.end() == 0, launched.errors
    assert launched.remaining_processes() == []


# For each way to make the others wait: the call, and the launcher's text about the late rank.
STALLS = {
    "come_late": (
        r"barrier `[^`]+`",
        r"has not called it; its last call, barrier `[^`]+`, finished \d+\.\d s ago",
    ),
    "come_late_to_init": (r"init\(\)", r"has not called init\(\)"),
    "keep_a_group_waiting": (
        r"barrier `[^`]+` \(group 1\)",
        r"has not called it; it has made no call since init\(\), \d+\.\d s ago",
    ),
    "join_late": (r"join `[^`]+`", r"has not called it; it has made no call since init\(\)"),
}


@pytest.mark.parametrize("stall", STALLS)
def test_a_stall_and_its_end_are_reported(stall: str, tmp_path: Path) -> None:
    call, rank_text = STALLS[stall]
    is_in_group = stall == "keep_a_group_waiting"
    waiting_text = "rank 0 has been" if is_in_group else "ranks 0, 2 have been"
    with job(stall, 3, tmp_path) as launched:
        read_errors_until(launched, rf"stalled: {call} waits for rank 1\n")
        read_errors_until(
            launched, rf"farandole:   {waiting_text} waiting in it for \d+(\.\d)? m?s"
        )
        read_errors_until(launched, rf"farandole:   rank 1 \(.+, pid \d+\) {rank_text}")
        (tmp_path / "go").touch()
        short_call = call.removesuffix(r" \(group 1\)")
        read_errors_until(launched, rf"farandole: {short_call} went on after \d+\.\d s")
        expect_success(launched, tmp_path)


def test_a_program_may_choose_the_time_before_init(tmp_path: Path) -> None:
    """The program chooses 1 s as the time of the warning. Otherwise, the first launcher would warn
    after 10 s, and the second one would never warn."""
    for started_with in ({"FARANDOLE_STALL_WARNING": ""}, {"HOROVOD_STALL_CHECK_DISABLE": "1"}):
        folder = tmp_path / "-".join(started_with)
        folder.mkdir()
        environment = {"FARANDOLE_STALL_WARNING": "", **started_with}
        with job("choose_the_time", 2, folder, environment) as launched:
            match = read_errors_until(launched, r"rank 0 has been waiting in it for (\d+\.\d) s")
            assert float(match[1]) < 10
            continue_late_rank(launched, folder)


def test_a_stall_is_reported_again_at_twice_the_time(tmp_path: Path) -> None:
    with job("come_late", 2, tmp_path) as launched:
        for _ in range(2):
            read_errors_until(launched, "stalled: barrier")
            launched.errors = launched.errors.replace("stalled:", "reported:")
        continue_late_rank(launched, tmp_path)


def test_ranks_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    with job("wait_elsewhere", 2, tmp_path) as launched:
        read_errors_until(launched, "ranks 0, 1 wait for each other:")
        waiting_text = r"has been waiting for .* in barrier"
        read_errors_until(launched, rf"rank 0 \(.+, pid \d+\) {waiting_text} `a` for rank 1")
        read_errors_until(launched, rf"rank 1 \(.+, pid \d+\) {waiting_text} `b` for rank 0")
        launched.send(signal.SIGTERM)
        assert launched.end() == 128 + signal.SIGTERM
        assert launched.remaining_processes() == []


def fake_py_spy(folder: Path, script: str) -> dict[str, str]:
    """Write a script that stands for py-spy, and put it first in PATH."""
    program = folder / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_the_stack_of_the_late_rank_is_shown(tmp_path: Path) -> None:
    dump = (
        'test "$1 $2 $3" = "dump --nonblocking --pid" || exit 1\n'
        "printf 'Process %s\\n\\nThread %s (idle)\\n    evaluate (eval.py:88)\\n' $4 $4"
    )
    with job("come_late", 2, tmp_path, fake_py_spy(tmp_path, dump)) as launched:
        read_errors_until(
            launched, r"farandole: rank 1 \(.+, pid \d+\) is here, innermost call first:"
        )
        read_errors_until(launched, r"farandole:     evaluate \(eval\.py:88\)")
        continue_late_rank(launched, tmp_path)


def test_a_stack_printer_without_permission_is_reported_once(tmp_path: Path) -> None:
    rejection = "echo 'Permission Denied: Try running again'; echo 'not as root' >&2; exit 1"
    with job("come_late", 2, tmp_path, fake_py_spy(tmp_path, rejection)) as launched:
        for _ in range(3):
            read_errors_until(launched, "stalled: barrier")
            launched.errors = launched.errors.replace("stalled:", "reported:")
        read_errors_until(launched, "py-spy could not look at rank 1")
        continue_late_rank(launched, tmp_path)
    assert launched.errors.count("py-spy could not look at rank 1") == 1
    assert "py-spy could not look at rank 1: not as root" in launched.errors
    assert "innermost" not in launched.errors
    assert "Permission" not in launched.errors


def test_a_hanging_stack_printer_does_not_disturb_the_job(tmp_path: Path) -> None:
    environment = fake_py_spy(tmp_path, "exec sleep 1000")
    with job("come_late", 2, tmp_path, environment) as launched:
        read_errors_until(launched, "stalled: barrier")
        # The hanging stack printer must end, too: continue_late_rank() also checks that no process
        # is left.
        continue_late_rank(launched, tmp_path)


def test_a_stopped_rank_is_named_and_may_go_on(tmp_path: Path) -> None:
    with job("run_until_go", 3, tmp_path) as launched:
        launched.read_until("running", times=3)
        pid = pid_of_rank(launched, 1)
        os.kill(pid, signal.SIGSTOP)
        read_errors_until(
            launched, rf"rank 1 \(pid {pid}\) is stopped \(SIGSTOP\); `kill -CONT {pid}` lets it"
        )
        read_errors_until(launched, r"stalled: barrier `[^`]+` waits for rank 1")
        os.kill(pid, signal.SIGCONT)
        read_errors_until(launched, rf"rank 1 \(pid {pid}\) goes on")
        continue_late_rank(launched, tmp_path)


def kill_rank(launched: CommandRun, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def end_the_job(launched: CommandRun, pid: int) -> None:
    launched.send(signal.SIGTERM)


@pytest.mark.parametrize(("end", "code"), [(kill_rank, 137), (end_the_job, 143)])
def test_a_stopped_rank_can_be_ended(
    end: Callable[[CommandRun, int], None], code: int, tmp_path: Path
) -> None:
    with job("run_until_go", 2, tmp_path) as launched:
        launched.read_until("running", times=2)
        pid = pid_of_rank(launched, 1)
        os.kill(pid, signal.SIGSTOP)
        read_errors_until(launched, rf"rank 1 \(pid {pid}\) is stopped")
        end(launched, pid)
        assert launched.end() == code, launched.errors
        assert launched.remaining_processes() == []
    assert "goes on" not in launched.errors


def test_a_stopped_survivor_is_ended(tmp_path: Path) -> None:
    with job("run_until_go", 3, tmp_path) as launched:
        launched.read_until("running", times=3)
        os.kill(pid_of_rank(launched, 1), signal.SIGSTOP)
        read_errors_until(launched, "is stopped")
        os.kill(pid_of_rank(launched, 0), signal.SIGKILL)
        assert launched.end() == 137, launched.errors
        assert launched.remaining_processes() == []
    assert re.search(r"rank 0 \(pid \d+\) was killed by signal 9", launched.errors)
    assert re.search(r"ranks? 1(, 2)?: ended with SIGTERM", launched.errors), launched.errors


def test_stopping_the_whole_job_is_not_reported(tmp_path: Path) -> None:
    with job("run_until_go", 2, tmp_path) as launched:
        launched.read_until("running", times=2)
        launched.send(signal.SIGTSTP)
        _, status = os.waitpid(launched.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        launched.send(signal.SIGCONT)
        continue_late_rank(launched, tmp_path)
    assert "is stopped" not in launched.errors
    assert "goes on" not in launched.errors


def ticks_of(pid: int) -> int:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_stopped_job_uses_no_processor_time() -> None:
    """While a job is stopped, the time of the launcher's next check passes. The launcher must not
    use processor time to wait for this check."""
    words = ("run", "-n", "1", "sh", "-c", "echo $PPID; exec sleep 1000")
    with CommandRun(*words, environment=ONE_SECOND) as launched:
        launched.read_until("[0] ")
        agent = int(launched.output.split()[1])
        launched.send(signal.SIGTSTP)
        _, status = os.waitpid(launched.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        ticks_before = ticks_of(agent)
        time.sleep(3)  # the agent must stay idle during this time
        assert ticks_of(agent) - ticks_before < 20
        launched.send(signal.SIGCONT)
        launched.send(signal.SIGTERM)
        assert launched.end() == 128 + signal.SIGTERM
        assert launched.remaining_processes() == []


def pid_of_rank(launched: CommandRun, rank: int) -> int:
    for pid in launched.remaining_processes():
        if f"FARANDOLE_RANK={rank}\0" in environment_of(pid):
            return pid
    raise AssertionError(f"there is no rank {rank}")


def test_a_rank_that_ends_before_init_does_not_block_the_others(tmp_path: Path) -> None:
    with job("end_before_init", 3, tmp_path, NO_WARNING) as launched:
        assert launched.end() == 1, launched.errors
        assert launched.remaining_processes() == []
    for rank in (0, 2):
        assert re.search(
            rf"survivor {rank}: .*rank 1 \(pid \d+\) has exited with code 0 before all ranks had "
            r"joined the job in init\(\)",
            launched.output,
        ), launched.output
    assert re.search(
        r"│ rank 1 \(pid \d+\) ended with exit code 0 without calling init", launched.errors
    )


def test_a_rank_that_dies_during_init_does_not_block_the_others(tmp_path: Path) -> None:
    with job("end_during_init", 3, tmp_path) as launched:
        read_errors_until(launched, r"stalled: init\(\) waits for rank 2\n")
        os.kill(pid_of_rank(launched, 1), signal.SIGKILL)
        assert launched.end() == 137, launched.errors
        assert launched.remaining_processes() == []
    for rank in (0, 2):
        assert re.search(
            rf"survivor {rank}: .*rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\) before",
            launched.output,
        ), launched.output
    assert re.search(r"│ rank 1 \(pid \d+\) was killed by signal 9", launched.errors)
