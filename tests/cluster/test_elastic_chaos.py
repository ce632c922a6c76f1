"""Elastic jobs under random faults. Workers die, stop and pause at named failpoints, and at random
times.

Each job has a seed, which chooses its faults. Workers fail at failpoints (see chaos_worker.py),
even while the group recovers from an earlier fault. This test also kills and stops workers from
outside. After some faults, the workers get no more of them, and the job must succeed: every batch
has counted once, and all workers have the same weights. One worker at a time is protected from
being killed, so that the state is never lost. To run more of these jobs:

    python tests/cluster/test_elastic_chaos.py --jobs 100 [--seed 7] [--faults 20]

Half of the jobs run on two hosts, which are loopback addresses. In these jobs, the test also kills
launchers: those of the hosts, and the launcher that decides about the members.

If a job is repeated with the same seed, the same faults are chosen, but they may happen at other
times.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from launched import CommandRun, run

FAULTS, JOBS = 20, 6
TIMEOUT_SECONDS = 600
FAILPOINTS = (
    *("engine.stopping", "engine.stopped", "rank.wanted", "rank.asked", "rank.given"),
    *("formation.published", "formation.shared", "formation.attached", "formation.counted"),
    *("formation.completed", "formation.departed", "sync.begun", "sync.done"),
    *("step.begun", "step.submitted", "step.waited", "step.compared", "step.committed"),
)
WORKER = str(Path(__file__).with_name("chaos_worker.py"))
FAILPOINT_PATTERN = re.compile(r"process (\d+) is at the failpoint ([\w.]+): (\w+)")
PROGRESS_PATTERN = re.compile(r"worker (\d+) \(pid (\d+)\) is at batch (\d+)")


def children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def is_stopped(pid: int) -> bool | None:
    """Return whether a process is stopped, or None if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None
    return None if state in "ZX" else state in "Tt"


class JobUnderFaults:
    """One job under faults. `faults` counts the faults that have happened, by their kind."""

    failpoints: set[str]  # the failpoints at which workers have failed

    def __init__(
        self,
        seed: str,
        folder: Path,
        fault_count_min: int,
        failpoint_count_min: int = 0,
        mistake: str = "",
    ) -> None:
        self.generator = random.Random(f"chaos {seed}")
        self.workers = self.generator.choice((3, 4))
        first_protected = self.generator.randrange(self.workers)
        self.folder, self.failpoints = folder, set()
        self.fault_count_min, self.failpoint_count_min = fault_count_min, failpoint_count_min
        self.faults: Counter[str] = Counter()
        # The test leaves one worker stopped, so that the launcher kills it after 10 s.
        self.keeps_one_stopped = self.generator.random() < 0.3
        self.stopped_until: list[tuple[float, int]] = []  # time and process id
        self.next_fault_at = 0.0
        self.pids: dict[int, int] = {}  # process ids of the workers that have trained
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # With a minimum of 2 workers, the protected worker must sometimes wait for a new one.
        flags = ("--min-workers", self.generator.choice("12"), "--cooldown-range", "0,0")
        self.has_hosts = seed not in ("failpoints", "mistake") and self.generator.random() < 0.5
        hosts = f"127.0.0.1:2,127.0.0.2:{self.workers - 2}"
        size = ("-H", hosts) if self.has_hosts else ("-n", str(self.workers))
        program = (sys.executable, WORKER, seed, str(first_protected), str(folder), mistake)
        self.launched = CommandRun(
            *("run", *size, *flags, *program),
            environment={"CHAOS_WORKERS": str(self.workers), "OMP_NUM_THREADS": "1"},
            seconds=TIMEOUT_SECONDS,
        )

    def run(self) -> int:
        """Run the job to its end and return its exit code."""
        with self.launched as launched:
            streams = {"output": launched.process.stdout, "errors": launched.process.stderr}
            readers = [threading.Thread(target=self._read, args=item) for item in streams.items()]
            for reader in readers:
                reader.start()
            while any(reader.is_alive() for reader in readers):
                for line in self._new_lines(0.02):
                    self._process_line(line)
                self._continue_stopped()
                if self.is_enough() or any(self.folder.glob("wrong.*")):
                    (self.folder / "end").touch()
                elif self.pids and time.monotonic() > self.next_fault_at:
                    self._inject_fault()
                    self.next_fault_at = time.monotonic() + self.generator.uniform(0.05, 1.0)
            code = launched.process.wait()
            assert launched.remaining_processes() == []
        return code

    def is_enough(self) -> bool:
        has_all_failpoints = len(self.failpoints) >= self.failpoint_count_min
        return self.faults.total() >= self.fault_count_min and has_all_failpoints

    def _read(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            setattr(self.launched, name, getattr(self.launched, name) + line)
            self.lines.put(line)

    def _new_lines(self, seconds: float) -> Iterator[str]:
        with suppress(queue.Empty):
            yield self.lines.get(timeout=seconds)
            while True:
                yield self.lines.get_nowait()

    def _process_line(self, line: str) -> None:
        if match := PROGRESS_PATTERN.search(line):
            self.pids[int(match[1])] = int(match[2])
        if match := FAILPOINT_PATTERN.search(line):
            pid, failpoint, action = int(match[1]), match[2], match[3]
            self.failpoints.add(failpoint)
            self.faults[f"{failpoint} {action}"] += 1
            if action == "stop":
                self._plan_to_continue(pid)

    def _inject_fault(self) -> None:
        """Kill or stop a random worker from outside, or kill a launcher."""
        if self.has_hosts and self.generator.random() < 0.2:
            self._kill_launcher()
            return
        action = self.generator.choice(("kill", "stop"))
        running = [
            pid
            for pid in self.pids.values()
            if is_stopped(pid) is False and (action == "stop" or not self.is_protected(pid))
        ]
        if not running:
            return
        pid = self.generator.choice(running)
        if action == "kill" and self.is_protected(pid):  # protected since the check above
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
            self.faults[f"outside {action}"] += 1
            if action == "stop":
                self._plan_to_continue(pid)

    def _kill_launcher(self) -> None:
        """Kill one process of a host's launcher, or of the launcher that has no workers."""
        launchers = [
            (foreground, agent, children_of(agent))
            for foreground in children_of(self.launched.process.pid)
            for agent in children_of(foreground)
        ]
        deciding_launchers = [launcher for launcher in launchers if not launcher[2]]
        other_launchers = [
            launcher
            for launcher in launchers
            if launcher[2] and not any(map(self.is_protected, launcher[2]))
        ]
        kind = self.generator.choice(("deciding launcher", "launcher of a host"))
        victims = deciding_launchers if kind == "deciding launcher" else other_launchers
        # The launcher that decides about the members never has workers. (The launchers of the hosts
        # have no workers before they get their orders.) If this launcher were lost quickly a fourth
        # time, the driver would give up.
        if len(deciding_launchers) != 1 or not victims or self.faults[kind] >= 3:
            return
        launcher = self.generator.choice(victims)
        if any(map(self.is_protected, launcher[2])):  # protected since the check above
            return
        with suppress(ProcessLookupError):
            os.kill(launcher[self.generator.randrange(2)], signal.SIGKILL)
            self.faults[kind] += 1

    def is_protected(self, pid: int) -> bool:
        return (self.folder / f"protected.{pid}").exists()

    def _plan_to_continue(self, pid: int) -> None:
        if self.keeps_one_stopped and not self.is_protected(pid):
            self.keeps_one_stopped = False
            self.faults["left stopped"] += 1
        else:
            self.stopped_until.append((time.monotonic() + self.generator.uniform(0, 0.4), pid))

    def _continue_stopped(self) -> None:
        not_due = []
        for when, pid in self.stopped_until:
            has_stopped = is_stopped(pid)
            # A failpoint writes its line a moment before it stops the process.
            if has_stopped and time.monotonic() >= when:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            elif has_stopped is not None:
                not_due.append((when, pid))
        self.stopped_until = not_due


def failure_of_job(job_under_faults: JobUnderFaults, code: int) -> str:
    """Return a description of the job's failure, or an empty text."""
    if failure := [file.read_text() for file in job_under_faults.folder.glob("wrong.*")]:
        return "; ".join(failure)
    if code != 0:
        return f"the job has ended with code {code}"
    if match := re.search(
        r"Traceback|raised|worker.* exited with code [^0].*", job_under_faults.launched.errors
    ):
        return f"a worker has failed by itself: {match[0]}"
    ended_pids = re.findall(r"\(pid (\d+)\) has the right ledger", job_under_faults.launched.output)
    protected_pids = {file.suffix[1:] for file in job_under_faults.folder.glob("protected.*")}
    if not protected_pids or not protected_pids <= set(ended_pids):
        return f"the protected workers {protected_pids} must still be there"
    if not job_under_faults.is_enough():
        return "the job has ended before there were enough faults"
    return ""


def report(job_under_faults: JobUnderFaults, seed: str, failure: str) -> str:
    messages = f"{job_under_faults.launched.output}\n{job_under_faults.launched.errors}"
    title = f"seed {seed}: {failure}"
    return f"{title}\n{dict(job_under_faults.faults)}\n{messages}\n{title}"


def seed_of_test(name: object) -> str:
    return f"{os.environ.get('FARANDOLE_TEST_SEED') or time.time_ns() % 1_000_000}.{name}"


@pytest.mark.parametrize("job", range(JOBS))
def test_every_batch_counts_once_under_random_faults(job: int, tmp_path: Path) -> None:
    seed = seed_of_test(job)
    job_under_faults = JobUnderFaults(seed, tmp_path, FAULTS)
    failure = failure_of_job(job_under_faults, job_under_faults.run())
    assert not failure, report(job_under_faults, seed, failure)


def test_a_worker_dies_at_each_failpoint(tmp_path: Path) -> None:
    job_under_faults = JobUnderFaults(
        "failpoints", tmp_path, FAULTS, failpoint_count_min=len(FAILPOINTS)
    )
    failure = failure_of_job(job_under_faults, job_under_faults.run())
    assert not failure, report(job_under_faults, "failpoints", failure)
    assert job_under_faults.failpoints == set(FAILPOINTS)


def test_a_wrong_failpoint_is_rejected() -> None:
    program = "import farandole; farandole.init()"
    launched = run(
        *("run", "-n", "1", sys.executable, "-c", program),
        environment={"FARANDOLE_FAILPOINT": "rank.asked:explode:1"},
    )
    assert launched.process.returncode == 1
    assert 'CallError: FARANDOLE_FAILPOINT is "rank.asked:explode:1"; it must be' in launched.errors
    for failpoint in FAILPOINTS:
        assert (failpoint in launched.errors) == (not failpoint.startswith(("sync", "step"))), (
            failpoint
        )


@pytest.mark.parametrize(
    ("mistake", "text"),
    [("ledger", "the batch 7 counts 2 times, not 1"), ("weights", "the weight 7 of rank")],
)
def test_a_mistake_is_found(mistake: str, text: str, tmp_path: Path) -> None:
    job_under_faults = JobUnderFaults("mistake", tmp_path, 1000, mistake=mistake)
    assert text in failure_of_job(job_under_faults, job_under_faults.run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first job")
    parser.add_argument("--faults", type=int, default=FAULTS, help="in each job")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            job_under_faults = JobUnderFaults(str(seed), Path(folder), arguments.faults)
            failure = "it does not end"
            with suppress(TimeoutError):
                failure = failure_of_job(job_under_faults, job_under_faults.run())
        total += job_under_faults.faults
        seconds = time.monotonic() - begin
        print(
            f"seed {seed}: {job_under_faults.faults.total()} faults, {seconds:.1f} s {failure}",
            flush=True,
        )
        if failure:
            sys.exit(report(job_under_faults, str(seed), failure))
    for kind, count in sorted(total.items()):
        print(f"{count:6} {kind}")
    print(f"{total.total():6} faults")


if __name__ == "__main__":
    main()
