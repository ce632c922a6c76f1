"""Programs that would hang with Horovod. The launcher reports which rank the others wait for, and
what this rank does.

test_stalls.py tests ranks that are stopped; test_failures.py tests ranks that are killed or crash.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from launched import CommandRun, command
from test_stalls import read_errors_until

WORKER = Path(__file__).with_name("hanging_worker.py")
HOST = re.escape(socket.gethostname())
DURATION = r"\d+(\.\d)? m?s( to \d+(\.\d)? m?s)?"
TENSOR = r"\(float64, 100 elements\)"

needs_py_spy = pytest.mark.skipif(
    shutil.which("py-spy") is None, reason="py-spy, which reads the stacks, is not installed"
)


def rank_pattern(number: int) -> str:
    return rf"rank {number} \({HOST}, pid \d+\)"


def job(mistake: str, size: int = 3) -> CommandRun:
    return CommandRun(
        *("run", "-n", str(size), "--stall-warning", "1", sys.executable, str(WORKER), mistake),
        environment={"OMP_NUM_THREADS": "1"},
    )


def expect(launched: CommandRun, *lines: str) -> None:
    """Expect these lines of the launcher, one after another. Then end the job."""
    pattern = "".join(rf"farandole: {line}\n" for line in lines)
    read_errors_until(launched, pattern)
    end(launched)


def end(launched: CommandRun) -> None:
    launched.send(signal.SIGTERM)
    assert launched.end() == 128 + signal.SIGTERM, launched.errors
    assert launched.remaining_processes() == []


def line_of(text: str) -> int:
    """Return the number of the line of hanging_worker.py that has this text."""
    lines = WORKER.read_text().splitlines()
    line_numbers = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(line_numbers) == 1
    return line_numbers[0]


ADVICE = r"  all ranks of a group must make the same blocking calls, in the same order"


def test_a_branch_that_only_one_rank_takes() -> None:
    with job("take_another_branch") as launched:
        expect(
            launched,
            "stalled: ranks 0, 1 wait for each other:",
            rf"  {rank_pattern(0)} has been waiting for {DURATION} in allreduce `metric` {TENSOR} "
            r"for ranks 1, 2",
            rf"  {rank_pattern(1)} has been waiting for {DURATION} in allreduce `grad` {TENSOR} "
            r"for rank 0",
            ADVICE,
        )


def test_blocking_calls_in_another_order() -> None:
    with job("call_in_another_order", 2) as launched:
        expect(
            launched,
            "stalled: ranks 0, 1 wait for each other:",
            rf"  {rank_pattern(0)} has been waiting for {DURATION} in allreduce `a` {TENSOR} "
            r"for rank 1",
            rf"  {rank_pattern(1)} has been waiting for {DURATION} in allreduce `b` {TENSOR} "
            r"for rank 0",
            ADVICE,
        )


def test_asynchronous_calls_in_another_order_are_no_hang() -> None:
    with job("start_in_another_order_and_wait_later", 2) as launched:
        assert launched.end() == 0, launched.errors
    assert launched.output.count("went well") == 2


def test_a_cycle_over_two_groups() -> None:
    with job("cross_groups") as launched:
        expect(
            launched,
            "stalled: ranks 0, 1 wait for each other:",
            rf"  {rank_pattern(0)} has been waiting for {DURATION} in allreduce `of the pair` "
            r"\(float64, 100 elements, group 1\) for rank 1",
            rf"  {rank_pattern(1)} has been waiting for {DURATION} in allreduce `of all` "
            rf"{TENSOR} for rank 0",
            ADVICE,
        )


def test_a_rank_that_raises_is_named_on_all_ranks() -> None:
    with job("raise_error") as launched:
        assert launched.end() == 1
        assert launched.remaining_processes() == []
    for other in (0, 2):
        assert re.search(
            rf"\[{other}\] farandole\.errors\.GroupLostError: (allreduce `grad` cannot finish: )?"
            r"rank 1 \(pid \d+\) has left the job \(raised ValueError: no label for image 4711\)",
            launched.errors,
        ), launched.errors
    assert re.search(r"│ rank 1 \(pid \d+\) raised ValueError: no label", launched.errors)


def test_a_rank_that_runs_out_of_batches_without_join_is_named() -> None:
    with job("run_out_of_batches") as launched:
        assert launched.end() == 1
        assert launched.remaining_processes() == []
    for other in (0, 2):
        assert re.search(
            rf"\[{other}\] farandole\.errors\.GroupLostError: (allreduce `grad` cannot finish: )?"
            r"rank 1 \(pid \d+\) has left the job \(its program ended\)",
            launched.errors,
        ), launched.errors
    unwrapped = re.sub(r" *│\n│ +", " ", launched.errors)  # undo line breaks
    assert re.search(
        r"rank 1 \(pid \d+\) ended with exit code 0 while others still needed it, after 3 calls",
        unwrapped,
    ), launched.errors


LAST_CALL = rf"its last call, allreduce `grad`, finished {DURATION} ago"


def test_a_rank_that_sleeps() -> None:
    with job("sleep_too_long") as launched:
        expect(
            launched,
            rf"stalled: allreduce `grad` {TENSOR} waits for rank 1",
            rf"  ranks 0, 2 have been waiting in it for {DURATION}",
            rf"  {rank_pattern(1)} has not called it; {LAST_CALL}",
        )


def test_a_rank_that_has_no_more_data_while_others_broadcast() -> None:
    with job("join_while_others_broadcast") as launched:
        expect(
            launched,
            r"stalled: broadcast `sizes` \(float64, 1 element\) waits for ranks 1, 2",
            rf"  rank 0 has been waiting in it for {DURATION}",
            rf"  {rank_pattern(1)} has no more data \(join\) after 3 calls",
            rf"  {rank_pattern(2)} has not called it; {LAST_CALL}",
        )


def test_a_rank_that_computes_is_not_part_of_a_cycle() -> None:
    with job("compute_meanwhile") as launched:
        expect(
            launched,
            rf"stalled: allreduce `grad` {TENSOR} waits for rank 1",
            rf"  ranks 0, 2 have been waiting in it for {DURATION}",
            rf"  {rank_pattern(1)} has not called it; {LAST_CALL}",
        )


# For each mistake: the function in which rank 1 hangs, and a text in the line where it hangs.
STACKS = {
    "sleep_too_long": ("evaluate", "time.sleep(1000)  # the line"),
    "hold_a_lock": ("hold_a_lock", "lock.acquire()  # the line"),
    "stay_in_c": ("stay_in_c", "ctypes.PyDLL(None)"),
}


@needs_py_spy
@pytest.mark.parametrize("mistake", STACKS)
def test_the_line_in_which_a_rank_hangs_is_shown(mistake: str) -> None:
    function, text = STACKS[mistake]
    with job(mistake) as launched:
        read_errors_until(
            launched, r"farandole: rank 1 \(.+, pid \d+\) is here, innermost call first:"
        )
        stack_line = rf"{function} \(.*hanging_worker\.py:{line_of(text)}\)"
        read_errors_until(launched, rf"farandole:     {stack_line}")
        end(launched)


@needs_py_spy
def test_two_ranks_are_in_different_lines() -> None:
    with job("take_another_branch") as launched:
        line = line_of('allreduce("metric")')
        read_errors_until(launched, rf"take_another_branch \(.*hanging_worker\.py:{line}\)\n")
        read_errors_until(launched, r"rank 1 \(.+, pid \d+\) is here(.*\n)+.*train \(")
        end(launched)


def test_without_py_spy_the_launcher_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_COMMAND", str(shutil.copy2(command(), tmp_path)))
    folders = os.environ["PATH"].split(os.pathsep)
    folders_without_py_spy = [f for f in folders if not (Path(f) / "py-spy").exists()]
    with CommandRun(
        *("run", "-n", "2", "--stall-warning", "1", sys.executable, str(WORKER), "sleep_too_long"),
        environment={"OMP_NUM_THREADS": "1", "PATH": os.pathsep.join(folders_without_py_spy)},
    ) as launched:
        read_errors_until(launched, r"install py-spy \(`pip install py-spy`\) to see here")
        end(launched)
