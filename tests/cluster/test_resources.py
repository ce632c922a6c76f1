"""Jobs with too little of a resource. Either the job works, or every rank says which resource is
short."""

from __future__ import annotations

import ctypes
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from launched import TIMEOUT_SECONDS, CommandRun, new_files_after_wait, shared_files

HERE = Path(__file__).parent
SMALL_WORKER = (sys.executable, str(HERE / "small_worker.py"))
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root to make namespaces and cgroups"
)


def run_job(
    size: int,
    *program: str,
    before_exec: Callable[[], object] | None = None,
    environment: dict[str, str] | None = None,
) -> CommandRun:
    """Run a job to its end, and check that no process is left and no invariant is broken."""
    words = ("run", "-n", str(size), *program)
    variables = {"FARANDOLE_START_TIMEOUT": "30", **(environment or {})}
    with CommandRun(*words, environment=variables, before_exec=before_exec) as job:
        job.end()
        assert job.remaining_processes() == []
    assert "bug in the engine" not in job.errors, job.errors
    return job


def code_of(job: CommandRun) -> int:
    return job.process.returncode


def has_one_result(job: CommandRun, size: int) -> bool:
    results = re.findall(r"result (\w+)", job.output)
    return len(results) == size and len(set(results)) == 1


def call_libc(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def mount_tiny_shared_memory() -> None:
    """Give this process a /dev/shm of 64 kB, and fill it."""
    clone_new_mounts, recursive_private = 0x20000, 0x4000 | 0x40000
    call_libc("unshare", clone_new_mounts)
    call_libc("mount", None, b"/", None, recursive_private, None)
    call_libc("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k")
    Path("/dev/shm/full").write_bytes(bytes(64 * 1024))


@needs_root
def test_a_full_dev_shm_is_no_obstacle() -> None:
    script = '"$0" "$@" && ls -A /dev/shm && df --output=avail /dev/shm'
    job = run_job(
        2, "sh", "-c", script, *SMALL_WORKER, "make_few_calls", before_exec=mount_tiny_shared_memory
    )
    assert code_of(job) == 0, job.errors
    assert has_one_result(job, 2), job.output
    lines = [line for line in job.output.splitlines() if "result" not in line]
    assert sorted(lines) == sorted(f"[{r}] {t}" for r in (0, 1) for t in ("full", "Avail", "    0"))


class ControlGroup:
    """A control group (version 1) of one kind, in which jobs can be started."""

    def __init__(self, kind: str) -> None:
        self.folder = Path("/sys/fs/cgroup") / kind / f"farandole-test-{os.getpid()}"
        try:
            self.folder.mkdir()
        except OSError as error:
            pytest.skip(f"no control group of the kind {kind} can be made here: {error}")

    def enter(self) -> None:
        (self.folder / "cgroup.procs").write_text("0")

    def set(self, name: str, value: int) -> None:
        (self.folder / name).write_text(str(value))

    def remove(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS / 5
        while True:
            try:
                self.folder.rmdir()
                break
            except OSError:  # killed processes stay in the group for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


@pytest.fixture
def control_group(request: pytest.FixtureRequest) -> Iterator[ControlGroup]:
    group = ControlGroup(request.param)
    yield group
    group.remove()


# The kernel allocates shared memory page by page, when a process first touches it. Pages of a memfd
# count for the control group. If the group is full, the kernel kills a process. A full tmpfs would
# cause a SIGBUS instead.
@needs_root
@pytest.mark.parametrize("control_group", ["memory"], indirect=True)
def test_a_kill_by_a_full_control_group_is_reported(control_group: ControlGroup) -> None:
    outcomes = []
    for megabytes in (16, 24, 32, 48, 64, 96, 256):
        control_group.set("memory.limit_in_bytes", megabytes << 20)
        job = run_job(2, *SMALL_WORKER, "touch_shared_memory", before_exec=control_group.enter)
        outcomes.append((megabytes, code_of(job)))
        if code_of(job) == 0:
            assert job.output.count("done") == 2, job.output
            continue
        assert code_of(job) in (1, 128 + signal.SIGKILL, -signal.SIGKILL), job.errors
        assert re.search("memory|SIGKILL", job.errors), job.errors
        assert "SIGBUS" not in job.errors, job.errors
    codes = [code for _, code in outcomes]
    assert codes[-1] == 0, outcomes
    assert codes[0] != 0, outcomes


@needs_root
@pytest.mark.parametrize("control_group", ["pids"], indirect=True)
def test_a_low_process_limit_is_reported(control_group: ControlGroup) -> None:
    """The limit counts threads, not processes. The job needs eight: the foreground process, the
    agent, and two workers with three threads each."""
    codes = []
    for limit in (*range(1, 10), 16):  # the kernel may still count a thread that has ended
        control_group.set("pids.max", limit)
        job = run_job(2, *SMALL_WORKER, "make_few_calls", before_exec=control_group.enter)
        codes.append(code_of(job))
        if code_of(job) == 0:
            assert has_one_result(job, 2), job.output
        else:
            assert code_of(job) == 1, job.errors
            assert re.search(r"cannot (start|fork)", job.errors), job.errors
            assert "temporarily unavailable" in job.errors, job.errors
    assert codes[0] != 0, codes
    assert codes[-1] == 0, codes


def test_no_locked_memory_is_needed() -> None:
    job = run_job(
        2,
        *SMALL_WORKER,
        "make_few_calls",
        before_exec=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)),
    )
    assert code_of(job) == 0, job.errors
    assert has_one_result(job, 2), job.output


def limit_descriptors(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


ADVICE = re.compile(r"raise `ulimit -n` to at least (\d+)")


@pytest.mark.parametrize("size", [2, 5])
def test_the_launcher_says_how_many_descriptors_it_needs(size: int) -> None:
    limits = [8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 128, 256]
    codes = []
    for limit in limits:
        job = run_job(
            size,
            *SMALL_WORKER,
            "make_few_calls",
            before_exec=partial(limit_descriptors, limit),
        )
        codes.append(code_of(job))
        if code_of(job) == 0:
            assert has_one_result(job, size), job.output
            continue
        assert code_of(job) in (1, 127), job.errors
        advice = ADVICE.search(job.errors)
        assert advice or "look at `ulimit -n`" in job.errors or limit < 16, job.errors
        if advice:
            assert int(advice[1]) > limit
    failures = [code != 0 for code in codes]
    assert failures == sorted(failures, reverse=True), codes  # a higher limit causes no failure
    assert codes[-1] == 0, codes


def test_a_job_that_follows_the_advice_succeeds() -> None:
    limit, steps = 16, 0
    while True:
        job = run_job(
            4,
            *SMALL_WORKER,
            "make_few_calls",
            before_exec=partial(limit_descriptors, limit),
        )
        if code_of(job) == 0:
            break
        advice = ADVICE.findall(job.errors)
        assert advice, job.errors
        assert steps < 3, f"after {steps} steps still: {job.errors}"
        limit, steps = max(map(int, advice)), steps + 1
    assert steps > 0


# Only rank 1 has the limit, but the other ranks must report it, too.
LIMITED_RANK = '[ "$FARANDOLE_RANK" != 1 ] || ulimit {}; exec "$0" "$@"'


@pytest.mark.parametrize("limit", [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16])
def test_a_worker_says_how_many_descriptors_it_needs(limit: int) -> None:
    job = run_job(
        2, "sh", "-c", LIMITED_RANK.format(f"-n {limit}"), *SMALL_WORKER, "make_few_calls"
    )
    if code_of(job) == 0:
        assert limit > 8
        assert has_one_result(job, 2), job.output
        return
    assert limit < 16, job.errors
    assert code_of(job) == 1, job.errors
    reported = [
        rank for rank in (0, 1) if re.search(rf"\[{rank}\] .*rank 1\b.* descriptors", job.errors)
    ]
    assert reported == [0, 1], job.errors
    assert f"limit of {limit}; raise `ulimit -n` to at least" in job.errors, job.errors


def test_a_program_may_use_up_its_descriptors_and_go_on() -> None:
    script = LIMITED_RANK.format("-n 64")
    job = run_job(3, "sh", "-c", script, *SMALL_WORKER, "use_up_descriptors")
    assert code_of(job) == 0, job.errors
    for rank in range(3):
        reported = re.findall(rf"\[{rank}\] reported: (.*)", job.output)
        assert len(reported) == 2, job.output  # one error for each of the two groups
        assert all("rank 1" in text and ADVICE.search(text) for text in reported), reported
        assert f"[{rank}] went on" in job.output, job.output


def test_too_little_address_space_is_reported() -> None:
    codes = []
    for megabytes in (60, 120, 200, 300, 400, 500, 700, 1500):
        limit = f'ulimit -v {megabytes * 1024}; exec "$0" "$@"'
        job = run_job(2, "sh", "-c", limit, *SMALL_WORKER, "make_few_calls")
        codes.append(code_of(job))
        if code_of(job) == 0:
            assert has_one_result(job, 2), job.output
            continue
        # The error may also come from Python itself, or from a thread that gets no memory for its
        # stack.
        texts = "memory|mmap|failed to map|MemoryError|address|cannot start the .* thread"
        assert re.search(texts, job.errors), job.errors
        assert "SIGSEGV" not in job.errors, job.errors
        assert "SIGBUS" not in job.errors, job.errors
    assert codes[0] != 0, codes
    assert codes[-1] == 0, codes


SMALL_HEAPS = {"FARANDOLE_HEAP_BYTES": str(2**21)}


def test_one_rank_with_little_address_space_needs_small_heaps() -> None:
    """Without FARANDOLE_HEAP_BYTES, rank 1 cannot map the heap of the other rank, which is too
    large."""
    script = LIMITED_RANK.format(f"-v {1500 * 1024}")
    job = run_job(2, "sh", "-c", script, *SMALL_WORKER, "make_few_calls")
    assert code_of(job) == 1, job.errors
    assert job.errors.count("set FARANDOLE_HEAP_BYTES for all ranks") >= 2, job.errors
    job = run_job(2, "sh", "-c", script, *SMALL_WORKER, "make_few_calls", environment=SMALL_HEAPS)
    assert code_of(job) == 0, job.errors
    assert has_one_result(job, 2), job.output


def test_a_small_file_size_limit_is_no_obstacle() -> None:
    """Files may have 16 MiB. This is enough for a group, which needs 2 MiB, and 4 MiB for each
    rank. The heaps become smaller."""
    job = run_job(2, "sh", "-c", 'ulimit -f 32768; exec "$0" "$@"', *SMALL_WORKER, "make_few_calls")
    assert code_of(job) == 0, job.errors
    assert has_one_result(job, 2), job.output


def test_a_result_that_does_not_fit_is_an_error_on_that_rank() -> None:
    job = run_job(2, *SMALL_WORKER, "gather_too_much", environment=SMALL_HEAPS)
    assert code_of(job) == 0, job.errors
    assert "[0] received [8000000, 8000000]" in job.output, job.output
    pattern = r"\[1\] reported: .*no memory for the result of .*: 16000000 rows of 8 bytes"
    assert re.search(pattern, job.output), job.output
    assert job.output.count("went on 2.0") == 2, job.output


@pytest.mark.parametrize("victims", ["all", "launcher", "some"])
def test_nothing_outlives_a_kill_at_any_moment(victims: str, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    generator = random.Random(seed)

    def files() -> list[str]:
        names = [name for name in os.listdir("/tmp") if name.startswith("farandole")]
        # Other tests have jobs whose hosts are listed by a function. Such jobs may make these
        # folders.
        own_names = [name for name in names if not name.startswith("farandole-hosts-")]
        return [*shared_files(), *os.listdir(tmp_path), *own_names]

    files_before = files()
    for _ in range(10):
        variables = {"TMPDIR": str(tmp_path)}
        words = ("run", "-n", "2", *SMALL_WORKER, "make_endless_calls")
        with CommandRun(
            *words, environment=variables, before_exec=lambda: os.chdir(tmp_path)
        ) as job:
            if generator.random() < 0.5:  # while the job starts
                time.sleep(generator.uniform(0, 0.8))  # the kill comes at a random moment
            else:  # while the job works
                job.read_until("step", times=generator.randint(1, 200))
            pids = job.remaining_processes()
            if victims == "launcher":
                pids = [job.process.pid]
            elif victims == "some" and pids:
                pids = generator.sample(pids, generator.randint(1, len(pids)))
            for pid in generator.sample(pids, len(pids)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # the process has ended together with one that was killed before
            if not pids:
                job.send(signal.SIGKILL)
            assert job.end() != 0
            deadline = time.monotonic() + TIMEOUT_SECONDS / 5
            while job.remaining_processes() and time.monotonic() < deadline:
                time.sleep(0.01)  # the kernel may still be ending the children of killed parents
            assert job.remaining_processes() == []
        assert new_files_after_wait(files, files_before) == []


def test_a_busy_machine_causes_no_false_death() -> None:
    busy_processes = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)
    ]
    try:
        job = run_job(8, *SMALL_WORKER, "make_many_calls")
    finally:
        for process in busy_processes:
            process.kill()
            process.wait()
    assert code_of(job) == 0, job.errors
    assert job.output.count("all 400 right") == 8, job.output


def test_a_program_keeps_its_own_handlers_and_children() -> None:
    job = run_job(2, sys.executable, str(HERE / "worker_with_handlers.py"))
    assert code_of(job) == 0, job.errors
    assert job.errors.count("nothing was changed") == 2, job.errors
