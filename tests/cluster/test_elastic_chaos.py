"""Elastic jobs under random faults: workers die, stop and pause at named places and random times.

Each job has a seed. Its workers get faults of their own (chaos_worker.py), also while the group
recovers from an earlier one, and this test kills and stops others from outside. After so many
faults, the job must end well: every batch has counted once, and all workers have the same weights.
Only one worker at a time is safe from being killed, so that the state is never lost; the workers
take turns. To run more of these jobs by hand:

    python tests/cluster/test_elastic_chaos.py --jobs 100 [--seed 7] [--faults 20]

Half of the jobs run on two hosts, which are loopback addresses. There, the launchers of the hosts
and the one that decides about the members are killed, too.

The faults of a seed are always the same, but the times at which they strike are not.
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
from launched import Launched, run

FAULTS, JOBS = 20, 6
HANG_SECONDS = 600
PLACES = (
    *("engine.stopping", "engine.stopped", "rank.wanted", "rank.asked", "rank.given"),
    *("formation.published", "formation.shared", "formation.attached", "formation.counted"),
    *("formation.completed", "formation.departed", "sync.begun", "sync.done"),
    *("step.begun", "step.submitted", "step.waited", "step.compared", "step.committed"),
)
WORKER = str(Path(__file__).with_name("chaos_worker.py"))
FAILPOINT = re.compile(r"process (\d+) is at the failpoint ([\w.]+): (\w+)")
PROGRESS = re.compile(r"worker (\d+) \(pid (\d+)\) is at batch (\d+)")


def children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def is_stopped(pid: int) -> bool | None:
    """Return None if the process has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None
    return None if state in "ZX" else state in "Tt"


class Chaos:
    """One job under faults. `faults` counts those that have struck, by their kind."""

    places: set[str]  # where faults of the workers have struck

    def __init__(
        self, seed: str, folder: Path, faults_wanted: int, places_wanted: int = 0, mistake: str = ""
    ) -> None:
        self.chooser = random.Random(f"chaos {seed}")
        self.workers = self.chooser.choice((3, 4))
        first_sheltered = self.chooser.randrange(self.workers)
        self.folder, self.places = folder, set()
        self.faults_wanted, self.places_wanted = faults_wanted, places_wanted
        self.faults: Counter[str] = Counter()
        # One stopped worker is left to the launcher, which kills it after 10 s.
        self.leaves_one_stopped = self.chooser.random() < 0.3
        self.to_continue: list[tuple[float, int]] = []  # when, and the process
        self.strike_at = 0.0
        self.pids: dict[int, int] = {}  # of workers that have trained
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # With 2, the worker that never dies must sometimes wait for a new one.
        flags = ("--min-workers", self.chooser.choice("12"), "--cooldown-range", "0,0")
        self.has_hosts = seed not in ("places", "mistake") and self.chooser.random() < 0.5
        hosts = f"127.0.0.1:2,127.0.0.2:{self.workers - 2}"
        size = ("-H", hosts) if self.has_hosts else ("-n", str(self.workers))
        program = (sys.executable, WORKER, seed, str(first_sheltered), str(folder), mistake)
        self.launched = Launched(
            *("run", *size, *flags, *program),
            environment={"CHAOS_WORKERS": str(self.workers), "OMP_NUM_THREADS": "1"},
            seconds=HANG_SECONDS,
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
                    self._hear(line)
                self._continue_stopped()
                if self.is_enough() or any(self.folder.glob("wrong.*")):
                    (self.folder / "quiet").touch()
                elif self.pids and time.monotonic() > self.strike_at:
                    self._strike()
                    self.strike_at = time.monotonic() + self.chooser.uniform(0.05, 1.0)
            code = launched.process.wait()
            assert launched.remaining_processes() == []
        return code

    def is_enough(self) -> bool:
        has_all_places = len(self.places) >= self.places_wanted
        return self.faults.total() >= self.faults_wanted and has_all_places

    def _read(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            setattr(self.launched, name, getattr(self.launched, name) + line)
            self.lines.put(line)

    def _new_lines(self, seconds: float) -> Iterator[str]:
        with suppress(queue.Empty):
            yield self.lines.get(timeout=seconds)
            while True:
                yield self.lines.get_nowait()

    def _hear(self, line: str) -> None:
        if found := PROGRESS.search(line):
            self.pids[int(found[1])] = int(found[2])
        if found := FAILPOINT.search(line):
            pid, place, action = int(found[1]), found[2], found[3]
            self.places.add(place)
            self.faults[f"{place} {action}"] += 1
            if action == "stop":
                self._plan_to_continue(pid)

    def _strike(self) -> None:
        """Kill or stop a random worker from outside, or kill a launcher."""
        if self.has_hosts and self.chooser.random() < 0.2:
            self._kill_launcher()
            return
        action = self.chooser.choice(("kill", "stop"))
        running = [
            pid
            for pid in self.pids.values()
            if is_stopped(pid) is False and (action == "stop" or not self.is_sheltered(pid))
        ]
        if not running:
            return
        pid = self.chooser.choice(running)
        if action == "kill" and self.is_sheltered(pid):  # meanwhile
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
            self.faults[f"outside {action}"] += 1
            if action == "stop":
                self._plan_to_continue(pid)

    def _kill_launcher(self) -> None:
        """Kill one process of the launcher of a host, or of the one that has no workers."""
        launchers = [
            (foreground, agent, children_of(agent))
            for foreground in children_of(self.launched.process.pid)
            for agent in children_of(foreground)
        ]
        deciding = [launcher for launcher in launchers if not launcher[2]]
        others = [
            launcher
            for launcher in launchers
            if launcher[2] and not any(map(self.is_sheltered, launcher[2]))
        ]
        kind = self.chooser.choice(("deciding launcher", "launcher of a host"))
        victims = deciding if kind == "deciding launcher" else others
        # A launcher of a host has no workers, either, until it has got orders. After a fourth quick
        # loss of the deciding one, the driver would give up.
        if len(deciding) != 1 or not victims or self.faults[kind] >= 3:
            return
        launcher = self.chooser.choice(victims)
        if any(map(self.is_sheltered, launcher[2])):  # meanwhile
            return
        with suppress(ProcessLookupError):
            os.kill(launcher[self.chooser.randrange(2)], signal.SIGKILL)
            self.faults[kind] += 1

    def is_sheltered(self, pid: int) -> bool:
        return (self.folder / f"sheltered.{pid}").exists()

    def _plan_to_continue(self, pid: int) -> None:
        if self.leaves_one_stopped and not self.is_sheltered(pid):
            self.leaves_one_stopped = False
            self.faults["left stopped"] += 1
        else:
            self.to_continue.append((time.monotonic() + self.chooser.uniform(0, 0.4), pid))

    def _continue_stopped(self) -> None:
        waiting = []
        for when, pid in self.to_continue:
            stopped = is_stopped(pid)
            # A failpoint writes its line a moment before it stops the process.
            if stopped and time.monotonic() >= when:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            elif stopped is not None:
                waiting.append((when, pid))
        self.to_continue = waiting


def what_is_wrong(chaos: Chaos, code: int) -> str:
    """Return what the job has done wrong, or an empty text."""
    if wrong := [file.read_text() for file in chaos.folder.glob("wrong.*")]:
        return "; ".join(wrong)
    if code != 0:
        return f"the job has ended with code {code}"
    if found := re.search(
        r"Traceback|raised|worker.* exited with code [^0].*", chaos.launched.errors
    ):
        return f"a worker has failed by itself: {found[0]}"
    ended = re.findall(r"\(pid (\d+)\) has the right ledger", chaos.launched.output)
    sheltered = {file.suffix[1:] for file in chaos.folder.glob("sheltered.*")}
    if not sheltered or not sheltered <= set(ended):
        return f"the sheltered workers {sheltered} must still be there"
    if not chaos.is_enough():
        return "the job has ended before there were enough faults"
    return ""


def report(chaos: Chaos, seed: str, wrong: str) -> str:
    shown = f"{chaos.launched.output}\n{chaos.launched.errors}"
    return f"seed {seed}: {wrong}\n{dict(chaos.faults)}\n{shown}\nseed {seed}: {wrong}"


def seed_of_test(name: object) -> str:
    return f"{os.environ.get('FARANDOLE_TEST_SEED') or time.time_ns() % 1_000_000}.{name}"


@pytest.mark.parametrize("job", range(JOBS))
def test_every_batch_counts_once_under_random_faults(job: int, tmp_path: Path) -> None:
    seed = seed_of_test(job)
    chaos = Chaos(seed, tmp_path, FAULTS)
    wrong = what_is_wrong(chaos, chaos.run())
    assert not wrong, report(chaos, seed, wrong)


def test_a_worker_dies_at_each_place(tmp_path: Path) -> None:
    chaos = Chaos("places", tmp_path, FAULTS, places_wanted=len(PLACES))
    wrong = what_is_wrong(chaos, chaos.run())
    assert not wrong, report(chaos, "places", wrong)
    assert chaos.places == set(PLACES)


def test_a_wrong_failpoint_is_rejected() -> None:
    program = "import farandole; farandole.init()"
    launched = run(
        *("run", "-n", "1", sys.executable, "-c", program),
        environment={"FARANDOLE_FAILPOINT": "rank.asked:explode:1"},
    )
    assert launched.process.returncode == 1
    assert 'CallError: FARANDOLE_FAILPOINT is "rank.asked:explode:1"; it must be' in launched.errors
    for place in PLACES:
        assert (place in launched.errors) == (not place.startswith(("sync", "step"))), place


@pytest.mark.parametrize(
    ("mistake", "text"),
    [("ledger", "the batch 7 counts 2 times, not 1"), ("weights", "the weight 7 of rank")],
)
def test_a_mistake_is_found(mistake: str, text: str, tmp_path: Path) -> None:
    chaos = Chaos("mistake", tmp_path, 1000, mistake=mistake)
    assert text in what_is_wrong(chaos, chaos.run())


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
            chaos = Chaos(str(seed), Path(folder), arguments.faults)
            wrong = "it does not end"
            with suppress(TimeoutError):
                wrong = what_is_wrong(chaos, chaos.run())
        total += chaos.faults
        seconds = time.monotonic() - begin
        print(f"seed {seed}: {chaos.faults.total()} faults, {seconds:.1f} s {wrong}", flush=True)
        if wrong:
            sys.exit(report(chaos, str(seed), wrong))
    for kind, count in sorted(total.items()):
        print(f"{count:6} {kind}")
    print(f"{total.total():6} faults")


if __name__ == "__main__":
    main()
