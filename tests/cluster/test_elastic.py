"""Elastic jobs: workers fail in all ways, the others go on, and every batch counts once."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from launched import CommandRun, environment_of, kill, run
from test_stalls import read_errors_until

WORKER = ("tests/cluster/elastic_worker.py",)
QUICK_RESTART = ("--cooldown-range", "0,1")


def elastic_words(
    workers: int, *arguments: str, min_workers: int = 1, flags: tuple[str, ...] = QUICK_RESTART
) -> list[str]:
    sizes = ("-n", str(workers), "--min-workers", str(min_workers))
    return ["run", *sizes, *flags, sys.executable, *arguments]


def new_workers(first_number: int, join_when: Path | None = None) -> dict[str, str]:
    """Return variables for the worker: the training waits in the middle for a worker with this
    number or a higher one. If `join_when` is given, such a worker joins when this file exists."""
    variables = {"NEW_WORKERS_FROM": str(first_number)}
    return variables if join_when is None else variables | {"JOIN_WHEN": str(join_when)}


def pids_of_finished_workers(launched: CommandRun) -> dict[int, int]:
    """Return the process ids of the workers that have ended well, by the number of the worker."""
    matches = re.findall(r"worker (\d+) \(pid (\d+)\) has the right sum", launched.output)
    return {int(number): int(pid) for number, pid in matches}


@pytest.fixture(autouse=True)
def use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.parametrize(
    ("lost_worker", "form"), [(0, "function"), (1, "function"), (0, "step"), (1, "step")]
)
def test_survivors_keep_their_processes_and_a_new_worker_joins(
    lost_worker: int, form: str, tmp_path: Path
) -> None:
    environment = new_workers(3, go_file := tmp_path / "go")
    with CommandRun(*elastic_words(3, *WORKER, "", form), environment=environment) as launched:
        launched.read_until(f"worker {lost_worker} has rank {lost_worker} of 3 at batch 0")
        started = launched.errors + launched.output
        assert "worker 3" not in started
        victim = kill(launched, lost_worker)
        launched.read_until("of 2 at batch", times=2)
        go_file.touch()
        assert launched.end() == 0, launched.errors
        assert launched.remaining_processes() == []
    survivors = {0, 1, 2} - {lost_worker}
    assert set(pids_of_finished_workers(launched)) == survivors | {3}
    assert victim not in pids_of_finished_workers(launched).values()
    assert f"worker {lost_worker} (pid {victim}) was killed by signal 9" in launched.errors
    assert "the job goes on with 2 workers" in launched.errors
    assert "the job goes on with 3 workers" in launched.errors
    assert re.search(r"worker 3 has rank [12] of 3 at batch [1-9]", launched.output)


def test_a_training_with_jax_goes_on_without_rank_0(tmp_path: Path) -> None:
    environment = new_workers(3, go_file := tmp_path / "go")
    with CommandRun(*elastic_words(3, *WORKER, "", "jax"), environment=environment) as launched:
        launched.read_until("worker 0 has rank 0 of 3 at batch 0")
        kill(launched, 0)
        launched.read_until("of 2 at batch", times=2)
        go_file.touch()
        assert launched.end() == 0, launched.errors
    assert "the job goes on with 2 workers" in launched.errors
    assert set(pids_of_finished_workers(launched)) >= {1, 2}


@pytest.mark.parametrize("form", ["function", "step", "jax"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_batch_counts_once(workers: int, form: str) -> None:
    seed = os.environ.get("FARANDOLE_TEST_SEED", "1")
    launched = run(*elastic_words(workers, *WORKER, seed, form), environment={"NO_STOPS": "1"})
    messages = f"seed {seed}\n{launched.output}\n{launched.errors}"
    assert "a batch is missing or counts twice" not in launched.errors, messages
    if launched.process.returncode == 0:
        assert pids_of_finished_workers(launched), messages
    else:  # rarely, all workers that have the state fail together
        trained = set(re.findall(r"worker (\d+) has rank", launched.output))
        failed_workers = set(re.findall(r"worker (\d+) fails", launched.output))
        assert trained and trained <= failed_workers, messages


SYNC_FAILS_PROGRAM = """
import os, signal, sys, farandole
from farandole import calls, elastic, lifecycle
from farandole.objects import broadcast_object
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
farandole.init()
class State(elastic.ObjectState):
    def sync(self):
        # Worker 2 is new: the one that has the state dies before it has sent it.
        if farandole.size() == 2 and number == 0 and self.step > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync()
state = State(broadcast_object, lifecycle.rank, step=0)
@(lambda function: elastic.run_fn(function, elastic.reset_job))
def train(state):
    assert number < 2, f"worker {number} begins at step {state.step} without the state"
    while True:
        calls.barrier()
        state.step += 1
        state.commit()
        if state.step == 5 and number == 1:
            os._exit(3)
train(state)
"""


def test_a_new_worker_does_not_begin_again_without_the_state() -> None:
    launched = run(*elastic_words(2, "-c", SYNC_FAILS_PROGRAM))
    assert launched.process.returncode != 0
    assert "no worker is left that has the state of the training" in launched.errors
    assert "without the state" not in launched.errors


LATE_JOIN_PROGRAM = """
import os, sys, time, farandole
from farandole import calls, elastic, lifecycle
from farandole.objects import broadcast_object
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
while number > 1 and not os.path.exists(sys.argv[1]): time.sleep(0.01)
farandole.init()
state = elastic.ObjectState(broadcast_object, lifecycle.rank, batch=0)
step = elastic.Step(state)
while step.ready() and state.batch < 3:
    with step:
        calls.barrier()
        if number == 1 and state.batch == 1:
            os._exit(3)
        state.batch += 1
        if number == 0 and state.batch == 3: open(sys.argv[1], "w").close()
        while number == 0 and state.batch == 3:
            if lifecycle.engine().is_change_announced():
                break
            time.sleep(0.01)
    print(f"worker {number} has done batch {state.batch}", flush=True)
print(f"worker {number} ends at batch {state.batch} of {farandole.size()} workers", flush=True)
"""


def test_a_worker_that_joins_after_the_last_step_does_no_step(tmp_path: Path) -> None:
    launched = run(*elastic_words(2, "-c", LATE_JOIN_PROGRAM, str(tmp_path / "last step")))
    assert launched.process.returncode == 0, launched.errors
    assert "worker 0 has done batch 3" in launched.output
    for worker in (0, 2):
        assert f"worker {worker} ends at batch 3 of 2 workers" in launched.output, launched.output
    assert "worker 2 has done" not in launched.output, launched.output


def test_a_stopped_worker_is_killed_and_replaced() -> None:
    with CommandRun(*elastic_words(2, *WORKER), environment=new_workers(2)) as launched:
        launched.read_until("worker 1 has rank 1 of 2 at batch 0")
        stopped_pid = next(
            pid
            for pid in launched.remaining_processes()
            if "FARANDOLE_ELASTIC_WORKER=1" in environment_of(pid)
        )
        os.kill(stopped_pid, signal.SIGSTOP)
        assert launched.end() == 0, launched.errors
    assert "worker 1 is still stopped; killing it" in launched.errors
    assert set(pids_of_finished_workers(launched)) >= {0}


def test_a_failure_at_the_start_ends_the_job() -> None:
    launched = run(*elastic_words(2, "-c", "raise SystemExit(7)"))
    assert launched.process.returncode == 7
    assert "failed before all workers had joined the job in init()" in launched.errors


LOADING_PROGRAM = """
import os, sys, farandole
from farandole import calls, elastic, lifecycle
from farandole.objects import broadcast_object
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
farandole.init()
state = elastic.ObjectState(broadcast_object, lifecycle.rank, weights="new")
if farandole.rank() == 0:
    if sys.argv[1] == "rank 0 fails":
        raise OSError("the checkpoint cannot be read")
    state.weights = "loaded"
elif sys.argv[1] == "rank 1 fails":
    raise OSError("no data")
@(lambda function: elastic.run_fn(function, elastic.reset_job))
def train(state):
    calls.barrier()
    print(f"worker {number} trains {state.weights} weights", flush=True)
train(state)
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_without_the_rank_0_of_the_start_no_training_begins(workers: int) -> None:
    launched = run(*elastic_words(workers, "-c", LOADING_PROGRAM, "rank 0 fails"))
    assert launched.process.returncode == 1
    assert "trains" not in launched.output, launched.output
    assert "OSError: the checkpoint cannot be read" in launched.errors, launched.errors
    text = "CallError: rank 0 was lost before it had given its state to the other ranks"
    assert text in launched.errors, launched.errors
    launched = run(*elastic_words(workers, "-c", LOADING_PROGRAM, "rank 1 fails"))
    assert launched.process.returncode == 0, launched.errors
    assert set(re.findall("trains (.*) weights", launched.output)) == {"loaded"}


FAILING_PROGRAM = """
import farandole
from farandole import calls, elastic, lifecycle
from farandole.objects import broadcast_object
farandole.init()
state = elastic.ObjectState(broadcast_object, lifecycle.rank, tries=0)
tries = []
@(lambda function: elastic.run_fn(function, elastic.reset_job))
def train(state):
    tries.append(1)
    if len(tries) == 6:
        state.commit()
    if len(tries) < 8:
        raise farandole.FarandoleError(f"no memory in try {len(tries)}")
train(state)
"""


def test_a_failure_that_comes_again_is_shown() -> None:
    launched = run(*elastic_words(2, "-c", FAILING_PROGRAM))
    assert launched.process.returncode == 0, launched.errors
    shown = re.findall("rank 1: (failure .*)", launched.errors)
    assert shown == [
        "failure 2 since the last commit or step: FarandoleError: no memory in try 2",
        "failure 4 since the last commit or step: FarandoleError: no memory in try 4",
        "failure 2 since the last commit or step: FarandoleError: no memory in try 7",
    ]


def test_without_survivors_the_job_fails_with_the_first_cause() -> None:
    program = "import farandole; farandole.init(); raise ValueError('no data')"
    launched = run(*elastic_words(2, "-c", program))
    assert launched.process.returncode == 1
    assert "raised ValueError: no data" in launched.errors
    assert "│" in launched.errors, "the box of the failure is shown"


def test_too_few_workers_end_the_job_at_the_limit() -> None:
    flags = ("--cooldown-range", "60,60", "--elastic-timeout", "1")
    program = (
        "import farandole, os\n"
        "from farandole import calls\n"
        "farandole.init()\n"
        "if farandole.rank() == 1: os._exit(3)\n"
        "try: calls.barrier()\n"
        "except farandole.GroupLostError: farandole.shutdown(); farandole.init()\n"
    )
    launched = run(*elastic_words(2, "-c", program, min_workers=2, flags=flags))
    assert "fewer than 2 workers could be found within 1 s" in launched.errors
    assert launched.process.returncode == 3


def test_the_limit_of_resets_ends_the_job() -> None:
    program = (
        "import farandole\n"
        "from farandole import calls\n"
        "for _ in range(5):\n"
        "    farandole.init(); print(farandole.size(), flush=True); calls.barrier()\n"
        "    farandole.shutdown()\n"
    )
    launched = run(*elastic_words(2, "-c", program, flags=("--reset-limit", "2")))
    assert launched.output.count("2\n") == 6
    assert "the limit of 2 resets is reached (--reset-limit)" in launched.errors
    assert launched.process.returncode != 0


LATE_WORKER_PROGRAM = """
import os, sys, time, farandole
from farandole import calls
farandole.init()
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
if number == 1: os._exit(3)
while number == 2 and not os.path.exists(sys.argv[1]): time.sleep(0.01)
if number == 3: os._exit(0)
try: calls.barrier()
except farandole.GroupLostError: farandole.shutdown(); farandole.init()
"""


def test_a_worker_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    go_file = tmp_path / "go"
    words = elastic_words(
        3, "-c", LATE_WORKER_PROGRAM, str(go_file), flags=("--stall-warning", "1")
    )
    with CommandRun(*words) as launched:
        read_errors_until(launched, r"worker 1 \(pid \d+\) has exited with code 3")
        launched.errors = ""  # a worker may also be late at the start
        read_errors_until(launched, r"wait in init\(\) for worker 2; `farandole")
        go_file.touch()
        assert launched.end() == 0, launched.errors


CYCLING_PROGRAM = """
import ctypes, os, time, farandole
from farandole import calls
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page would look like a leak
def count(folder):
    numbers = []  # for a moment, there may be more: a thread that ends, or a file that is read
    for _ in range(50):
        numbers.append(len(os.listdir(folder)))
        time.sleep(0.02)
    return min(numbers)
def facts():
    pages = int(open("/proc/self/statm").read().split()[1])
    return count("/proc/self/fd"), count("/proc/self/task"), pages
def launcher_descriptors():
    return count(f"/proc/{os.getppid()}/fd")
for cycle in range(130):
    farandole.init()
    calls.barrier()
    if cycle == 29: first = facts(), launcher_descriptors()
    if cycle == 129: last = facts(), launcher_descriptors()
    calls.barrier()
    farandole.shutdown()
assert last[0][:2] == first[0][:2], (first, last)
assert last[1] == first[1], (first, last)
assert last[0][2] - first[0][2] < 256, (first, last)
print("nothing leaks")
"""


def test_forming_the_group_again_leaks_nothing() -> None:
    launched = run(*elastic_words(2, "-c", CYCLING_PROGRAM))
    assert launched.output.count("nothing leaks") == 2, launched.errors
    assert launched.process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--min-workers", "3"), "--min-workers is 3, but the job starts with 2 workers (-n)"),
        (("--min-workers", "0"), "--min-workers"),
        (("--reset-limit", "1"), "--reset-limit is for elastic jobs: also say how many workers"),
        (("--min-workers", "1", "--cooldown-range", "5"), 'is "5"; it must be two numbers'),
        (("--min-workers", "1", "--cooldown-range", "5,1"), 'is "5,1"; the first number'),
        (("--min-workers", "1", "--tf-config"), "need a fixed number of workers"),
        (("--min-workers", "3", "-H", "localhost:2"), "but the job starts with 2 workers (-n)"),
        (("--min-workers", "1", "--host-discovery-script", ""), "discovery-script is empty"),
        (("--min-workers", "1", "--max-workers", "2"), "--max-workers is for --host-discovery"),
        (("--min-workers", "1", "--slots-per-host", "2"), "--slots-per-host is for --host-discov"),
    ],
)
def test_wrong_flags_are_rejected(flags: tuple[str, ...], text: str) -> None:
    launched = run("run", "-n", "2", *flags, "true")
    assert launched.process.returncode == 2
    assert text in launched.errors
