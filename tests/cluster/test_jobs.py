"""Functions and scripts that a program runs as jobs: results, failures, output and ends."""

from __future__ import annotations

import code
import io
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import CommandRun, fail_after_timeout  # noqa: F401, the guard is autouse

import farandole
from farandole.jobs import launched_worker
from farandole.jobs.channel import OutgoingMessage

CALLING_PROGRAM = str(Path(__file__).with_name("calling_program.py"))
# Without these variables, the launcher prints a notice if it chooses the number of threads, and
# another notice if a rank is late.
WITHOUT_NOTICES = {"OMP_NUM_THREADS": "1", "FARANDOLE_STALL_WARNING": "0"}


def rank() -> int:
    return int(os.environ["FARANDOLE_RANK"])


def test_results_are_ordered_by_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def work(first: float, *, more: float) -> tuple[int, float]:
        import torch  # noqa: PLC0415

        import farandole.torch as hvd  # noqa: PLC0415

        hvd.init()
        print("é from", hvd.rank())
        total = hvd.allreduce(torch.full((1000,), first + more * hvd.rank()), op=hvd.Sum)
        return hvd.rank(), float(total[0])

    results = farandole.run(work, (1.0,), {"more": 10.0}, n=3, env=WITHOUT_NOTICES)
    assert results == [(0, 33.0), (1, 33.0), (2, 33.0)]
    captured = capfd.readouterr()
    assert sorted(captured.out.splitlines()) == [
        f"[{number}] é from {number}" for number in range(3)
    ]
    assert captured.err == ""


def test_a_lambda_and_a_closure_run_on_more_ranks_than_cores() -> None:
    base = [100]
    assert farandole.run(lambda: base[0] + rank(), n=5, env=WITHOUT_NOTICES) == [
        100,
        101,
        102,
        103,
        104,
    ]
    assert farandole.run(lambda *words: words, ["a", "b"]) == [("a", "b")]


def test_options_reach_the_launcher(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> str:
        print("hello")
        return os.environ["GIVEN"] + os.environ["FARANDOLE_START_TIMEOUT"]

    options: dict[str, Any] = {"prefix": "", "output_dir": tmp_path, "start_timeout": 77}
    assert (
        farandole.run(work, n=2, env={**WITHOUT_NOTICES, "GIVEN": "here "}, **options)
        == ["here 77"] * 2
    )
    assert capfd.readouterr().out == "hello\nhello\n"
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"
    with pytest.raises(farandole.CallError, match=r"there is no field \{nothing\}"):
        farandole.run(work, prefix="{nothing}")
    with pytest.raises(farandole.CallError, match="--start-timeout is"):
        farandole.run(work, start_timeout=-1)
    with pytest.raises(farandole.CallError, match="command not found: `/no/python`"):
        farandole.run(work, executable="/no/python")


def test_an_exception_arrives_with_its_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        from farandole import calls  # noqa: PLC0415

        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so this rank has 10 s to end, not 5 s
        farandole.init()
        if farandole.rank() == 1:
            raise ValueError("no data")
        calls.barrier()

    with pytest.raises(
        farandole.WorkerError, match=r"^rank 1 \(pid \d+\) raised ValueError"
    ) as caught:
        farandole.run(work, n=3, env=WITHOUT_NOTICES)
    error = caught.value
    assert isinstance(error, farandole.FarandoleError)
    assert (error.rank, error.exit_code) == (1, 1)
    assert (error.exception_type, error.exception_text) == ("ValueError", "no data")
    assert 'raise ValueError("no data")' in error.remote_traceback
    assert "function_worker" not in error.remote_traceback
    assert error.remote_traceback in f"{error}\n"
    shown = capfd.readouterr()
    assert re.search(r"^│ rank 1 \(pid \d+\) raised ValueError: no data", shown.err, re.MULTILINE)
    assert "[0] farandole.errors.GroupLostError: " in shown.err
    assert "runpy" not in shown.err


EXIT_FUNCTIONS = {
    "is killed": (137, "was killed by signal 9 (SIGKILL) before its function had returned"),
    "exits well": (0, "exited with code 0 before its function had returned"),
    "exits": (7, "exited with code 7 before its function had returned"),
    "exits late": (8, "exited with code 8 after its function had returned"),
}


@pytest.mark.parametrize("exit_name", EXIT_FUNCTIONS)
def test_a_rank_that_ends_without_a_result(exit_name: str) -> None:
    def work() -> None:
        import atexit  # noqa: PLC0415

        if rank() != 1:
            return
        if exit_name == "exits late":
            atexit.register(os._exit, 8)
        elif exit_name == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            sys.exit(7 if exit_name == "exits" else 0)

    with pytest.raises(farandole.WorkerError) as caught:
        farandole.run(work, n=2, env=WITHOUT_NOTICES)
    code, text = EXIT_FUNCTIONS[exit_name]
    assert (caught.value.rank, caught.value.exit_code) == (1, code)
    assert re.fullmatch(rf"rank 1 \(pid \d+\) {re.escape(text)}", str(caught.value))


def test_a_result_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(farandole.WorkerError) as caught:
        farandole.run(lambda: (i for i in ()) if rank() == 1 else 1, n=2, env=WITHOUT_NOTICES)
    assert caught.value.exception_text == (
        "the result of rank 1, of the type generator, cannot be pickled: TypeError: cannot pickle "
        "'generator' object"
    )


def test_a_result_that_cannot_be_unpickled_is_named() -> None:
    class FailingToUnpickle:
        def __reduce__(self) -> object:
            return int, ("x",)

    with pytest.raises(
        farandole.WorkerError,
        match=r"^rank 0 \(pid \d+\) has returned something of"
        " the type .*FailingToUnpickle that cannot be unpickled here: ValueError: invalid",
    ):
        farandole.run(FailingToUnpickle, env=WITHOUT_NOTICES)


interruptions: list[str] = []


def result_after_an_interruption() -> str:
    if not interruptions:
        interruptions.append("Ctrl-C")
        raise KeyboardInterrupt
    return "result"


def test_a_result_is_kept_after_an_interruption() -> None:
    class Interrupting:
        def __reduce__(self) -> object:
            return eval, ("__import__('test_jobs').result_after_an_interruption()",)

    sys.modules["test_jobs"] = sys.modules[__name__]
    workers = farandole.launch_workers(1, Interrupting, env=WITHOUT_NOTICES)
    with pytest.raises(KeyboardInterrupt):
        farandole.await_workers(workers)
    assert farandole.await_workers(workers) == ["result"]


BIG_RESULTS_PROGRAM = """
import farandole, resource
import numpy as np
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
def work(): return np.full(25_000_000, 1.5), peak
before = peak()
results = farandole.run(work, n=2)
print(all((array == 1.5).all() and array.flags.writeable for array, _ in results))
print((peak() - before) / sum(array.nbytes for array, _ in results))
"""


def test_big_results_are_not_copied() -> None:
    with CommandRun("-c", BIG_RESULTS_PROGRAM, program=sys.executable) as caller:
        assert caller.end() == 0, caller.errors
    is_correct, memory_ratio = caller.output.splitlines()
    assert is_correct == "True"
    assert float(memory_ratio) < 1.3


RESULT_TOO_LARGE_PROGRAM = """
import farandole, resource
import numpy as np
from pathlib import Path
def work():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return np.ones(50_000_000)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
try:
    farandole.run(work)
except farandole.WorkerError as error:
    print(error)
"""


def test_a_result_without_room_is_reported() -> None:
    with CommandRun("-c", RESULT_TOO_LARGE_PROGRAM, program=sys.executable) as caller:
        assert caller.end() == 0, caller.errors
    last_line = caller.output.splitlines()[-1]
    assert last_line.endswith("has returned more than there is memory for in this process")


ASCII_PROGRAM = """
import farandole
print(farandole.run(lambda: print("caf\\u00e9"), env={"PYTHONIOENCODING": "utf-8"}))
"""


def test_an_ascii_stdout_ends_no_job() -> None:
    ascii_output = {"PYTHONIOENCODING": "ascii"}
    with CommandRun(
        "-c", ASCII_PROGRAM, program=sys.executable, environment=ascii_output
    ) as caller:
        assert caller.end() == 0, caller.errors
    assert caller.output == "[0] caf?\n[None]\n"


def test_big_arguments_and_many_parts_arrive() -> None:
    arrays = [np.arange(number) for number in (0, 1, 10_000, 2_000_000)]
    (result,) = farandole.run(lambda given: given, (arrays * 20,), env=WITHOUT_NOTICES)
    assert all((one == other).all() for one, other in zip(arrays * 20, result, strict=True))


def test_a_job_within_a_job() -> None:
    def outer() -> list[str]:
        inner = farandole.run(lambda: f"{rank()} of {os.environ['FARANDOLE_SIZE']}", n=3)
        return [f"{rank()}: {text}" for text in inner]

    results = farandole.run(outer, n=2, env=WITHOUT_NOTICES)
    assert results == [[f"{o}: {i} of 3" for i in range(3)] for o in range(2)]


# As in a notebook, the functions are in a `__main__` without a file, and sys.stdout is not a file.
NOTEBOOK_CELLS = """
import farandole
base = 10
class Point:
    def __init__(self, x): self.x = x
def work(x):
    print("in the worker")
    return Point(base + x)
points = farandole.run(work, (5,), n=2, env={"OMP_NUM_THREADS": "1"})
print([point.x for point in points], all(type(point) is Point for point in points))
"""
SHOWN_LINES = ["[0] in the worker", "[15, 15] True", "[1] in the worker"]  # sorted


def test_an_interpreter_that_replaces_stdout_can_run_functions() -> None:
    interpreter = code.InteractiveInterpreter({"__name__": "__main__"})
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        interpreter.runcode(compile(NOTEBOOK_CELLS, "<cell>", "exec"))
    assert sorted(out.getvalue().splitlines()) == SHOWN_LINES
    assert err.getvalue().startswith("farandole: no worker of this job called")  # init()
    assert err.getvalue().count("\n") == 1


@pytest.mark.parametrize("words", [("-c", NOTEBOOK_CELLS), ("-i",), ("-",)])
def test_functions_of_a_program_without_a_file_run(words: tuple[str, ...]) -> None:
    typed_lines = NOTEBOOK_CELLS.replace("\ndef work", "\n\ndef work").replace(
        "\npoints", "\n\npoints"
    )
    caller = subprocess.run(
        [sys.executable, *words], input=typed_lines, check=False, capture_output=True, text=True
    )
    assert sorted(caller.stdout.splitlines()) == SHOWN_LINES, caller.stderr


def test_a_function_beside_the_script_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("def work(): return __file__\n")
    script = folder / "script.py"
    script.write_text("import beside, farandole\nprint(farandole.run(beside.work, n=2))\n")
    caller = subprocess.run(
        [sys.executable, script], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert caller.stdout == f"{[str(folder / 'beside.py')] * 2}\n", caller.stderr


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([pidfd], [], [])  # SIGALRM guards against hanging
        os.close(pidfd)


@pytest.mark.parametrize(
    "options",
    ["run", "run stubborn", "launch", pytest.param("launch stubborn", marks=pytest.mark.long)],
)
def test_nothing_outlives_a_caller_that_is_killed(options: str) -> None:
    with CommandRun(CALLING_PROGRAM, *options.split(), program=sys.executable) as caller:
        caller.read_until("working", times=2)
        remaining_pids = set(caller.remaining_processes()) - {caller.process.pid}
        assert len(remaining_pids) >= 4  # foreground process, agent, workers
        caller.send(signal.SIGKILL)
        wait_until_gone(list(remaining_pids))
        assert caller.remaining_processes() == []


def test_nothing_outlives_a_killed_caller_whose_descriptors_somebody_holds() -> None:
    with CommandRun(CALLING_PROGRAM, "launch", "forks", program=sys.executable) as caller:
        caller.read_until("working", times=2)
        caller.read_until("child ")
        child = int(re.findall(r"child (\d+)", caller.output)[0])
        remaining_pids = set(caller.remaining_processes()) - {caller.process.pid, child}
        assert len(remaining_pids) >= 4
        caller.send(signal.SIGKILL)
        wait_until_gone(list(remaining_pids))
        assert caller.remaining_processes() == [child]


def test_ctrl_c_ends_the_workers() -> None:
    with CommandRun(CALLING_PROGRAM, "run", program=sys.executable) as caller:
        caller.read_until("working", times=2)
        caller.send(signal.SIGINT)
        assert caller.end() == -signal.SIGINT
        assert caller.remaining_processes() == []
    assert caller.errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "farandole: the job has ended after SIGINT" in caller.errors


def test_an_interrupted_cell_ends_the_workers(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        print("working", flush=True)
        signal.pause()

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if "working" in text:
                raise KeyboardInterrupt
            return super().write(text)

    with redirect_stdout(Interrupting()), pytest.raises(KeyboardInterrupt):
        farandole.run(work, n=2, env=WITHOUT_NOTICES)
    assert_nothing_is_left()
    assert "the job has ended after SIGINT" in capfd.readouterr().err


def test_an_interruption_when_the_job_has_ended_loses_no_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work() -> None:
        try:
            print("working", flush=True)
            signal.pause()
        finally:
            print("ending", flush=True)

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if "ending" in text:
                wait_for_end_of_job_threads()
            if "ing" in text:
                raise KeyboardInterrupt
            return super().write(text)

    with redirect_stdout(Interrupting()), pytest.raises(KeyboardInterrupt):
        farandole.run(work, n=1, env=WITHOUT_NOTICES)
    assert_nothing_is_left()
    assert "the job has ended after SIGINT" in capfd.readouterr().err


def wait_for_end_of_job_threads() -> None:
    """The thread of a job says that the job has ended shortly before the thread itself ends."""
    for thread in threading.enumerate():
        if thread.name == "farandole-job":
            thread.join()


def assert_nothing_is_left() -> None:
    """Check that no thread of a job and no child is left, not even a zombie."""
    wait_for_end_of_job_threads()
    assert [thread.name for thread in threading.enumerate() if "farandole" in thread.name] == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_nothing_is_left_in_the_caller_after_many_jobs() -> None:
    def job(number: int) -> None:
        if number % 4 == 3:
            with pytest.raises(farandole.CallError):
                farandole.run(rank, prefix="{nothing}")
        elif number % 2 == 1:
            workers = farandole.launch_workers(2, ["sh", "-c", "exit 3"])
            farandole.await_workers(workers)
        else:
            assert farandole.run(lambda: number, env=WITHOUT_NOTICES) == [number]

    job(0)
    descriptors_before = sorted(os.listdir("/proc/self/fd"))
    for number in range(20):
        job(number)
    assert sorted(os.listdir("/proc/self/fd")) == descriptors_before
    assert_nothing_is_left()


def test_workers_are_launched_and_awaited(tmp_path: Path) -> None:
    def work(text: str, fifo: Path) -> str:
        print(text)
        print("beside", file=sys.stderr)
        if rank() == 0:
            fifo.write_text(str(os.getpid()))
            return text
        wait_until_gone([int(fifo.read_text())])
        raise KeyError(text)

    os.mkfifo(fifo := tmp_path / "pid of rank 0")
    workers = farandole.launch_workers(2, work, ("hello", fifo), env=WITHOUT_NOTICES)
    result, failure = farandole.await_workers(workers)
    assert result == workers[0].result == "hello"
    assert isinstance(failure, farandole.WorkerError)
    assert failure.exception_type == "KeyError"
    assert [worker.state for worker in workers] == ["done", "failed"]
    assert [worker.exit_code for worker in workers] == [0, 1]
    assert [worker.rank for worker in workers] == [0, 1]
    assert len({worker.pid for worker in workers}) == 2
    assert {worker.address for worker in workers} == {os.uname().nodename}
    assert (workers[0].stdout, workers[0].stderr) == ("hello\n", "beside\n")
    assert workers[0].output == "hello\nbeside\n"
    assert workers[1].stderr.endswith("KeyError: 'hello'\n")
    assert re.search(r"^│ rank 1 \(pid \d+\) raised KeyError", workers.messages, re.MULTILINE)
    assert re.search(r"^   0 +\d+  done +0\n   1 +\d+  failed +1$", repr(workers), re.MULTILINE)
    farandole.stop_workers(workers)
    assert [worker.state for worker in workers] == ["done", "failed"]
    assert_nothing_is_left()


def test_a_worker_that_has_not_ended_in_time_goes_on() -> None:
    workers = farandole.launch_workers(2, ["sh", "-c", "echo $FARANDOLE_RANK; exec sleep 1000"])
    while not all(worker.pid for worker in workers):  # the other workers may not have written yet
        farandole.await_workers(workers, timeout=0.01)
    outcomes = farandole.await_workers(workers, timeout=0)
    assert all(isinstance(outcome, TimeoutError) for outcome in outcomes)
    assert "rank 1 (pid " in str(outcomes[1]) and "still runs after 0 s" in str(outcomes[1])
    assert not any(worker.has_ended for worker in workers)
    farandole.stop_workers(workers)
    assert [worker.state for worker in workers] == ["stopped", "stopped"]
    assert [worker.exit_code for worker in workers] == [143, 143]
    (first_outcome, _) = farandole.await_workers(workers, timeout=float("inf"))
    assert re.fullmatch(
        r"rank 0 \(pid \d+\) was killed by signal 15 \(SIGTERM\)", str(first_outcome)
    )
    assert_nothing_is_left()


def test_a_worker_that_ignores_signals_is_killed() -> None:
    script = 'trap "" TERM INT; echo ready; while :; do sleep 1; done'
    workers = farandole.launch_workers(2, ["sh", "-c", script])
    while not all(worker.stdout for worker in workers):
        farandole.await_workers(workers, timeout=0.01)
    farandole.stop_workers(workers, grace_time=0)
    assert [worker.exit_code for worker in workers] == [137, 137]
    assert_nothing_is_left()


@pytest.mark.parametrize("grace_time", [0, 3])
def test_workers_are_stopped_by_a_program_that_ignores_interrupts(grace_time: float) -> None:
    """If a shell starts a program in the background, the program ignores SIGINT, and so does the
    launcher that it starts. stop_workers() must work all the same."""
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        workers = farandole.launch_workers(1, ["sh", "-c", 'trap "" TERM; echo ready; sleep 1000'])
        while not workers[0].stdout:
            farandole.await_workers(workers, timeout=0.01)
        farandole.stop_workers(workers, grace_time=grace_time)
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    assert workers[0].exit_code == 137
    # The second signal makes the launcher kill the worker. On a busy machine, both signals may
    # arrive together and count as one. Then the launcher kills the worker only after 30 s.
    texts = ("a second signal (SIGTERM); killing rank 0", "rank 0 did not end within 30 s; killing")
    assert any(text in workers.messages for text in texts), workers.messages
    assert_nothing_is_left()


def test_a_program_without_standard_output() -> None:
    program = "import farandole; assert farandole.run(print, ('hello',), n=1) == [None]"
    completed = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -c "{program}" >&-'], check=False
    )
    assert completed.returncode == 0


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[1]))")
    workers = farandole.launch_workers(1, script, (0, "b c"))
    assert farandole.await_workers(workers) == [None]
    assert (workers[0].state, workers[0].output) == ("done", "['0', 'b c']\n")
    (failure,) = farandole.await_workers(farandole.launch_workers(1, str(script), [3]))
    assert re.fullmatch(r"rank 0 \(pid \d+\) exited with code 3", str(failure))


def test_the_newest_output_is_kept() -> None:
    words = ["sh", "-c", "yes old | head -c 3000000; yes err | head -c 400000 >&2; printf end"]
    workers = farandole.launch_workers(1, words)
    assert farandole.await_workers(workers) == [None]
    worker = workers[0]
    assert worker.stdout.endswith("old\nend")
    assert worker.stderr == "err\n" * 100_000
    assert len(worker.output) == len(worker.stdout) + len(worker.stderr) == 1 << 20


def test_a_killed_launcher_ends_its_workers() -> None:
    workers = farandole.launch_workers(2, ["sleep", "1000"])
    pids = [worker.pid for worker in workers if worker.pid is not None]
    os.kill(int(re.findall(r"launcher (\d+)", repr(workers))[0]), signal.SIGKILL)
    outcomes = farandole.await_workers(workers)
    assert all(isinstance(outcome, farandole.WorkerError) for outcome in outcomes)
    wait_until_gone(pids)


def test_an_error_while_following_a_job_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_room(worker: launched_worker.Worker, *_: object) -> None:
        if worker.pid is not None:
            raise OSError("no room")

    monkeypatch.setattr(launched_worker.Worker, "record_output", raise_no_room)
    workers = farandole.launch_workers(1, ["yes"])
    (outcome,) = farandole.await_workers(workers)
    assert str(outcome) == (
        f"rank 0 (pid {workers[0].pid}) was lost: this program has ended the job, because it "
        "could not follow it: OSError: no room"
    )
    assert workers[0].pid is not None
    wait_until_gone([workers[0].pid])


@pytest.mark.parametrize("sent_bytes", [0, 3, 30, -1])
def test_a_caller_that_dies_while_it_sends_is_reported(sent_bytes: int) -> None:
    message_parts = OutgoingMessage([b"[null, []]", b"a pickle"])._unsent
    message = b"".join(message_parts)
    own_end, other_end = socket.socketpair()
    with own_end, other_end:
        worker = subprocess.Popen(
            [sys.executable, "-m", "farandole.jobs.function_worker"],
            env={**os.environ, "FARANDOLE_CHANNEL_DESCRIPTOR": str(other_end.fileno())},
            pass_fds=[other_end.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        own_end.sendall(message[:sent_bytes])
        own_end.shutdown(socket.SHUT_WR)
        _, errors = worker.communicate()
    assert worker.returncode == 1
    assert errors == "the program that has started this job has ended\n"
