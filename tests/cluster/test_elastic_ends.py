"""Elastic jobs whose launcher or driver is killed: the workers finish their step, save and end.

The last test kills at random times. To repeat it, and to see how long the workers took:

    python tests/cluster/test_elastic_ends.py --jobs 20 [--seed 7]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pickle
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from driven import kill, make_ssh_hosts, parent_of
from launched import TIMEOUT_SECONDS, CommandRun, environment_of, run
from test_stalls import read_errors_until
from test_terminal import Terminal

WORKER = (sys.executable, str(Path(__file__).with_name("ending_worker.py")))
LEDGER_SIZE = 64  # the same as in ending_worker.py
WAIT_SECONDS = TIMEOUT_SECONDS / 2  # a guard; the documented limit is only 10 s
ENDED_EARLY = 75
HOSTS = ("-H", "127.0.0.1:2,127.0.0.2:1")
PR_SET_CHILD_SUBREAPER = 36


def start(
    folder: Path, form: str, behavior: str = "", *flags: str, seconds: float = 0.01
) -> CommandRun:
    sizes = () if "-H" in flags else ("-n", "3")
    return CommandRun(
        *("run", *sizes, "--min-workers", "2", *flags, *WORKER, str(folder), form, behavior),
        environment={"OMP_NUM_THREADS": "1", "STEP_SECONDS": str(seconds)},
    )


def workers_of(job: CommandRun) -> dict[int, int]:
    """Return the process ids of the workers by their numbers."""
    pids = {}
    for pid in job.remaining_processes():
        variables = dict(v.partition("=")[::2] for v in environment_of(pid).split("\0"))
        if number := variables.get("FARANDOLE_ELASTIC_WORKER"):
            pids[int(number)] = pid
    return pids


def agent_of(job: CommandRun) -> int:
    workers = workers_of(job).values()
    return next(
        pid
        for pid in job.remaining_processes()
        if parent_of(pid) == job.process.pid and pid not in workers
    )


def kill_foreground(job: CommandRun) -> None:
    kill(job.process.pid)


def kill_agent(job: CommandRun) -> None:
    kill(agent_of(job))


def kill_both(job: CommandRun) -> None:
    # Stop the foreground process, so that it does not adopt the workers and reap those that end.
    # Kill the agent before the foreground process, so that the agent does not tell its workers that
    # the foreground process is dead.
    kill(job.process.pid, signal.SIGSTOP)
    kill(agent_of(job))
    kill(job.process.pid)


KILLS = {"foreground": kill_foreground, "agent": kill_agent, "both": kill_both}
each_kill = pytest.mark.parametrize("kill_launcher", KILLS.values(), ids=KILLS)


def each_kill_with(name: str, values: list[str]) -> pytest.MarkDecorator:
    """Use each kill and each value at least once in the everyday tests. In the long tests, use all
    pairs of a kill and a value."""
    pairs = [
        pytest.param(
            kill_launcher, value, id=f"{kill}-{value}", marks=() if i == j else pytest.mark.long
        )
        for i, (kill, kill_launcher) in enumerate(KILLS.items())
        for j, value in enumerate(values)
    ]
    return pytest.mark.parametrize(("kill_launcher", name), pairs)


def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads have stopped, because only then the kernel
    shows the process as stopped."""
    os.kill(pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{pid}/task").glob("*/status"))
    while not all("State:\tT" in thread.read_text() for thread in threads):
        time.sleep(0.01)


def wait_until_all_have_ended(job: CommandRun) -> float:
    """Wait until no process of the job is left. Return how many seconds this took."""
    begin = time.monotonic()
    while job.remaining_processes():
        assert time.monotonic() < begin + WAIT_SECONDS, "a process of the job is left"
        time.sleep(0.01)
    return time.monotonic() - begin


def wait_until_ended(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while any(environment_of(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.01)


def mistake_in_checkpoints(folder: Path, writers: set[int]) -> str:
    """Check the saved files of the workers. Return a description of the first mistake, or an empty
    text."""
    for file in folder.glob("wrong.*"):
        return file.read_text()
    files = {int(file.suffix[1:]): file.read_bytes() for file in folder.glob("checkpoint.*")}
    if set(files) != writers:
        return f"{sorted(files)} have saved their state, not {sorted(writers)}"
    if len(set(files.values())) > 1:
        batches = {number: pickle.loads(data)[0] for number, data in files.items()}
        return f"the checkpoints differ: {batches}"
    for data in files.values():
        batch, ledger = pickle.loads(data)[:2]
        if ledger != [batch // LEDGER_SIZE + (i < batch % LEDGER_SIZE) for i in range(LEDGER_SIZE)]:
            return f"a batch is missing or counts twice at {batch}: {ledger}"
    return ""


def read_progress(job: CommandRun) -> None:
    job.read_until("is at batch", times=3)


@each_kill_with("form", ["function", "step", "torch"])
def test_all_save_the_same_step(
    kill_launcher: Callable[[CommandRun], None], form: str, tmp_path: Path
) -> None:
    with start(tmp_path, form) as job:
        read_progress(job)
        kill_launcher(job)
        wait_until_all_have_ended(job)
        job.end()
    assert not mistake_in_checkpoints(tmp_path, {0, 1, 2}), job.output + job.errors
    if kill_launcher is kill_foreground:
        assert "the foreground process of the launcher was killed" in job.errors
        assert job.errors.count("its end callbacks are done; exit code 75") == 3
    if kill_launcher is kill_agent:
        assert job.process.returncode == 128 + signal.SIGKILL
        assert "was killed by signal 9 (SIGKILL); its workers end after their" in job.errors


@pytest.mark.parametrize(
    "frontend", ["jax", *(pytest.param(f, marks=pytest.mark.long) for f in ("tensorflow", "keras"))]
)
def test_the_states_of_all_frontends_are_saved(frontend: str, tmp_path: Path) -> None:
    program = (sys.executable, str(Path(__file__).with_name("ending_frontend.py")))
    environment = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    words = ("run", "-n", "2", "--min-workers", "2", *program, str(tmp_path), frontend)
    with CommandRun(*words, environment=environment) as job:
        while len(list(tmp_path.glob("trains.*"))) < 2:
            assert job.process.poll() is None, job.end() or job.errors
            time.sleep(0.01)
        kill_agent(job)
        wait_until_all_have_ended(job)
        job.end()
    checkpoints = [file.read_bytes() for file in tmp_path.glob("checkpoint.*")]
    assert len(checkpoints) == 2 and checkpoints[0] == checkpoints[1], job.output + job.errors
    assert pickle.loads(checkpoints[0])[0] > 0


@each_kill
def test_a_shell_between_the_launcher_and_the_worker_is_no_obstacle(
    kill_launcher: Callable[[CommandRun], None], tmp_path: Path
) -> None:
    script = shlex.join([*WORKER, str(tmp_path), "function"]) + "; exit $?"
    environment = {"OMP_NUM_THREADS": "1"}
    words = ("run", "-n", "3", "--min-workers", "2", "sh", "-c", script)
    with CommandRun(*words, environment=environment) as job:
        read_progress(job)
        kill_launcher(job)
        wait_until_all_have_ended(job)
        job.end()
    assert not mistake_in_checkpoints(tmp_path, {0, 1, 2}), job.output + job.errors


ONE_RANK_KNOWS_PROGRAM = """
import sys, farandole
from farandole import calls, elastic, lifecycle
from farandole.objects import broadcast_object
farandole.init()
state = elastic.ObjectState(broadcast_object, lifecycle.rank, batch=0)
state.register_end_callbacks([lambda: print("saves batch", state.batch, flush=True)])
@(lambda function: elastic.run_fn(function, elastic.reset_job))
def train(state):
    while True:
        calls.barrier()
        state.batch += 1
        if state.batch == 7 and farandole.rank() == 1:
            lifecycle.announced_end = lambda limit=0: "rank 1 knows it"
        assert state.batch < 8, "the others go on"
        state.commit()
train(state)
"""


def test_it_is_enough_if_one_rank_knows_that_the_job_ends() -> None:
    launched = run(
        "run", "-n", "3", "--min-workers", "3", sys.executable, "-c", ONE_RANK_KNOWS_PROGRAM
    )
    assert launched.process.returncode == ENDED_EARLY, launched.errors
    assert launched.output.count("saves batch 7") == 3, launched.output + launched.errors
    assert launched.errors.count("rank 1 knows it") == 1
    assert launched.errors.count("the launcher of this job is lost") == 2


@contextmanager
def become_subreaper() -> Iterator[None]:
    """Let this process adopt its orphaned descendants. At the end, reap those that are left,
    because other tests check that there is no child."""
    prctl = ctypes.CDLL(None).prctl
    children_before = children_of(os.getpid())
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in set(children_of(os.getpid())) - set(children_before):
            os.waitpid(pid, 0)


def exit_code_of_orphan(pid: int) -> int:
    while True:
        with suppress(ChildProcessError):  # `pid` becomes our child when its launcher ends
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("behavior", "codes"),
    [
        ("", [ENDED_EARLY] * 3),
        ("no callbacks", [ENDED_EARLY] * 3),
        ("fails at the end", [ENDED_EARLY, 1, ENDED_EARLY]),
        ("hangs at the end", [ENDED_EARLY, -signal.SIGKILL, ENDED_EARLY]),
    ],
)
def test_workers_have_the_documented_exit_code(
    behavior: str, codes: list[int], tmp_path: Path
) -> None:
    with become_subreaper(), start(tmp_path, "function", behavior) as job:
        read_progress(job)
        workers = workers_of(job)
        kill_both(job)
        assert [exit_code_of_orphan(workers[number]) for number in range(3)] == codes


@each_kill_with("behavior", ["hangs", "sleeps", "no commits"])
def test_a_worker_that_does_not_end_is_killed(
    kill_launcher: Callable[[CommandRun], None], behavior: str, tmp_path: Path
) -> None:
    with start(tmp_path, "function", behavior) as job:
        if behavior == "no commits":
            read_progress(job)
        else:
            job.read_until(f"worker 1 {behavior}")
        kill_launcher(job)
        wait_until_all_have_ended(job)
    assert not list(tmp_path.glob("checkpoint.*"))


@each_kill
def test_a_stopped_worker_goes_on_or_is_killed(
    kill_launcher: Callable[[CommandRun], None], tmp_path: Path
) -> None:
    with start(tmp_path, "function") as job:
        read_progress(job)
        stop(workers_of(job)[1])
        kill_launcher(job)
        wait_until_all_have_ended(job)
    is_state_saved = mistake_in_checkpoints(tmp_path, {0, 1, 2}) == ""
    # If no launcher is left to continue a stopped worker, the kernel ends it with SIGHUP.
    is_no_state_saved = kill_launcher is kill_both and not list(tmp_path.glob("checkpoint.*"))
    assert is_state_saved or is_no_state_saved


@each_kill
def test_output_that_nobody_reads_is_no_obstacle(
    kill_launcher: Callable[[CommandRun], None], tmp_path: Path
) -> None:
    with start(tmp_path, "function", "prints") as job:
        while not list(tmp_path.glob("trains.*")):
            time.sleep(0.01)
        time.sleep(1)  # now the pipes are probably full
        workers = workers_of(job).values()
        kill_launcher(job)
        wait_until_ended(workers)  # nobody reads the output
        job.end()
        wait_until_all_have_ended(job)
    assert not mistake_in_checkpoints(tmp_path, {0, 1, 2})


@pytest.mark.parametrize("killed", ["foreground", "agent", "both"])
def test_output_to_a_terminal_is_no_obstacle(killed: str, tmp_path: Path) -> None:
    script = "exec " + shlex.join([*WORKER, str(tmp_path), "function", "prints"])
    terminal = Terminal(3, script, "--min-workers", "2")
    while not list(tmp_path.glob("trains.*")):
        time.sleep(0.01)
    (agent,) = children_of(terminal.pid)
    workers = children_of(agent)
    if killed != "foreground":
        kill(agent)
    if killed != "agent":
        kill(terminal.pid)
    wait_until_ended(workers)
    terminal.end()
    assert not mistake_in_checkpoints(tmp_path, {0, 1, 2})


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@each_kill
@pytest.mark.parametrize("form", ["function", "step"])
def test_if_a_worker_is_lost_too_the_others_end_without_callbacks(
    kill_launcher: Callable[[CommandRun], None], form: str, tmp_path: Path
) -> None:
    with start(tmp_path, form, "dies") as job:
        job.read_until("worker 1 dies")
        kill_launcher(job)
        wait_until_all_have_ended(job)
        job.end()
    assert not list(tmp_path.glob("checkpoint.*")), "the callbacks were not called"
    if kill_launcher is kill_foreground:
        text = "this rank ends without its end callbacks"
        assert job.errors.count(text) == 2, job.errors


@each_kill
def test_workers_that_wait_in_init_end_too(
    kill_launcher: Callable[[CommandRun], None], tmp_path: Path
) -> None:
    with start(tmp_path, "function", "waits to join") as job:
        job.read_until("worker 1 (pid")
        job.read_until("comes to init()", times=2)
        time.sleep(0.5)  # now the others have probably started
        kill_launcher(job)
        wait_until_all_have_ended(job)
    assert not list(tmp_path.glob("checkpoint.*"))


@pytest.mark.parametrize("form", ["function", "step"])
@pytest.mark.parametrize("has_output_folder", [False, True], ids=["", "copies"])
def test_all_hosts_end_if_the_driver_is_killed(
    form: str, has_output_folder: bool, tmp_path: Path
) -> None:
    # With --output-dir, there is another process between the driver and each launcher.
    flags = (*HOSTS, "--output-dir", str(tmp_path / "output")) if has_output_folder else HOSTS
    with start(tmp_path, form, "", *flags) as job:
        read_progress(job)
        kill(job.process.pid)
        wait_until_all_have_ended(job)
    assert not mistake_in_checkpoints(tmp_path, {0, 1, 2})


@pytest.mark.parametrize(
    "driver_host", [0, 2], ids=["driver on the first host", "driver elsewhere"]
)
def test_all_hosts_end_if_the_driver_is_killed_that_uses_ssh(
    driver_host: int, tmp_path: Path
) -> None:
    (folder := tmp_path / "saved").mkdir()
    words = ("-H", "host0:1,host1:2", "--min-workers", "1", *WORKER, str(folder), "function")
    with make_ssh_hosts(3, tmp_path) as hosts, hosts.start(*words, driver=driver_host) as job:
        read_progress(job)
        kill(job.process.pid)
        hosts.wait_for_end_of(job)
    assert not mistake_in_checkpoints(folder, {0, 1, 2})


def test_workers_that_hang_are_killed_on_all_hosts(tmp_path: Path) -> None:
    with start(tmp_path, "function", "hangs", *HOSTS) as job:
        job.read_until("worker 1 hangs")
        kill(job.process.pid)
        wait_until_all_have_ended(job)
    assert not list(tmp_path.glob("checkpoint.*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_still_ends_the_job_at_once(number: int, tmp_path: Path) -> None:
    with start(tmp_path, "function") as job:
        read_progress(job)
        job.send(number)
        assert job.end() == 128 + number
    assert not list(tmp_path.glob("checkpoint.*"))


def test_ctrl_c_ends_the_wait_for_the_workers(tmp_path: Path) -> None:
    with start(tmp_path, "function", "hangs") as job:
        job.read_until("worker 1 hangs")
        kill_agent(job)
        read_errors_until(job, "its workers end after their next commit")
        job.send(signal.SIGINT)
        assert job.end() == 128 + signal.SIGKILL
        assert job.remaining_processes() == []


class RandomKill:
    """One job whose launcher or driver is killed at a random time."""

    def __init__(self, seed: str, folder: Path) -> None:
        generator = random.Random(f"ends {seed}")
        self.way = generator.choice([*KILLS, "driver"])
        form = generator.choice(["function", "step", "torch"])
        behavior = generator.choice(["", "prints"])
        self.description = f"{self.way}, {form} {behavior}"
        self.delay = generator.uniform(0, 1)
        flags = HOSTS if self.way == "driver" else ()
        seconds = generator.choice([0.0, 0.01, 0.1])
        self.folder, self.job = folder, start(folder, form, behavior, *flags, seconds=seconds)

    def run(self) -> tuple[float, float]:
        """Return two numbers of seconds: until the state was saved, and until all workers had
        ended."""
        with self.job as job:
            # During this time, the test does not read the output.
            while len(list(self.folder.glob("trains.*"))) < 3:
                time.sleep(0.01)
            time.sleep(self.delay)
            workers = workers_of(job).values()
            begin = time.time()
            KILLS.get(self.way, kill_foreground)(job)
            wait_until_ended(workers)
            end_seconds = time.time() - begin
            job.end()
            wait_until_all_have_ended(job)
        times = [file.stat().st_mtime for file in self.folder.glob("checkpoint.*")]
        return max(times, default=0.0) - begin, end_seconds

    def mistake_in_checkpoints(self) -> str:
        return mistake_in_checkpoints(self.folder, {0, 1, 2})


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3))]
)
def test_a_kill_at_a_random_time(number: int, tmp_path: Path) -> None:
    seed = f"{os.environ.get('FARANDOLE_TEST_SEED') or time.time_ns() % 1_000_000}.{number}"
    random_kill = RandomKill(seed, tmp_path)
    random_kill.run()
    mistake = random_kill.mistake_in_checkpoints()
    messages = f"{random_kill.job.output[-3000:]}\n{random_kill.job.errors[-3000:]}"
    assert not mistake, f"seed {seed} ({random_kill.description}): {mistake}\n{messages}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first job")
    arguments = parser.parse_args()
    times = []
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        with tempfile.TemporaryDirectory() as folder:
            random_kill = RandomKill(str(seed), Path(folder))
            times.append(random_kill.run())
            mistake = random_kill.mistake_in_checkpoints()
        save_seconds, end_seconds = times[-1]
        print(
            f"seed {seed}: {random_kill.description}: saved after {save_seconds:.2f} s, "
            f"ended after {end_seconds:.2f} s {mistake}",
            flush=True,
        )
        if mistake:
            sys.exit(random_kill.job.output[-3000:] + random_kill.job.errors[-3000:])
    save_seconds, end_seconds = (max(column) for column in zip(*times, strict=True))
    print(
        f"{len(times)} jobs: saved after {save_seconds:.2f} s, "
        f"ended after {end_seconds:.2f} s at most"
    )


if __name__ == "__main__":
    main()
