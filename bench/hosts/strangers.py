#!/usr/bin/env python3
"""Measure how much strangers on the network slow down a job on two hosts.

Run `.venv/bin/python bench/hosts/strangers.py` as root, after `./dev test python` has installed the
package. The hosts are network namespaces of this machine. A third host has the strangers:
connections that do not know the job's secret (tools/stranger_traffic.py). The job runs all the
time. Three kinds of phases take turns, in rounds: without strangers; with strangers that connect to
another program on their own host (bench/hosts/decoy.py); and with strangers that connect to the
job. Each ratio compares two phases of one round. The table shows the medians of the ratios, with
their 95 % intervals.

The job and the strangers share the cores of this machine. So the strangers and the other program
run with a low priority (--nice), and the output shows how much of a core the strangers use. The
ratio to the phases with the other program leaves out the cost of sharing cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
sys.path[:0] = [str(ROOT / "bench"), str(TOOLS)]
from compare import machine_facts  # noqa: E402
from hosts import Hosts, HostsError, run_in_child_process  # noqa: E402
from ratios import Interval, speedup  # noqa: E402
from record_packets import recorded_packets  # noqa: E402
from replays import replays  # noqa: E402
from report import aligned, time_text  # noqa: E402
from stranger_traffic import listening_endpoints, write_replays  # noqa: E402

PORT = 4711
RANKS = 2  # ranks on each of the two hosts
P99_RATIO_MAX = 1.2  # the largest accepted ratio of the p99 with strangers to that without
SETTLE_SECONDS = 1.0  # pause between two phases
START_SECONDS_MAX = 120
Window = tuple[float, float]  # begin and end, from time.monotonic()


Report = dict[str, Any]  # the JSON report of tools/stranger_traffic.py
PHASES = ("without", "decoy", "strangers")


@dataclass
class Round:
    windows: dict[str, Window]  # when each phase ran
    reports: dict[str, Report]  # the report of the strangers in each phase


class Job:
    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        farandole = str(Path(sys.executable).parent / "farandole")
        secret = str(self.folder / "secret")
        subprocess.run([farandole, "secret", secret], check=True)
        program = [sys.executable, str(Path(__file__).with_name("strangers_worker.py"))]
        program += [str(self.folder / name) for name in ("warm", "end", "times")]
        for node in range(2):
            words = [farandole, "run", "--join", self.hosts[0].endpoint(PORT), "--nodes", "2"]
            words += ["--node", str(node), "--secret", secret, "-n", str(RANKS), *program]
            self.launchers.append(self.hosts[node].start(*words, stdin=subprocess.DEVNULL))
        self.wait_for("warm")

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (self.folder / name).exists():
            self.check()
            if time.monotonic() > deadline:
                raise HostsError("the job does not start")
            time.sleep(0.05)

    def check(self) -> None:
        codes = [launcher.poll() for launcher in self.launchers]
        if any(code is not None for code in codes):
            raise HostsError(f"the job has ended, with the exit codes {codes}")

    def end(self) -> dict[str, Any]:
        self.check()
        (self.folder / "end").touch()
        codes = [launcher.wait() for launcher in self.launchers]
        if any(codes):
            raise HostsError(f"the job has failed, with the exit codes {codes}")
        return json.loads((self.folder / "times").read_text())


@contextlib.contextmanager
def recording(hosts: Hosts, file: Path) -> Iterator[None]:
    words = [sys.executable, str(TOOLS / "record_packets.py"), str(file)]
    with hosts[0].start(*words, stdout=subprocess.PIPE) as recorder:
        try:
            recorder.stdout.readline()
            yield
        finally:
            recorder.kill()


@contextlib.contextmanager
def decoy(hosts: Hosts, ports: int, nice: int) -> Iterator[list[str]]:
    words = [sys.executable, str(Path(__file__).with_name("decoy.py")), hosts[2].address]
    command = ["nice", "-n", str(nice), *words, str(ports)]
    with hosts[2].start(*command, stdout=subprocess.PIPE) as process:
        try:
            yield process.stdout.readline().split()
        finally:
            process.kill()


@dataclass
class Attack:
    """Runs the strangers for one phase, on the third host."""

    hosts: Hosts
    arguments: argparse.Namespace
    endpoints: dict[str, list[str]]  # what the strangers connect to, by phase
    replays: Path

    def run(self, phase: str, seed: int) -> Report:
        arguments = self.arguments
        words = ["nice", "-n", str(arguments.nice), sys.executable]
        words += [str(TOOLS / "stranger_traffic.py"), *self.endpoints[phase]]
        words += ["--idle", str(arguments.idle), "--dribbling", str(arguments.dribbling)]
        words += ["--messages", str(-(-arguments.messages // arguments.rounds))]
        words += ["--seconds", str(arguments.seconds), "--seed", str(seed)]
        words += ["--replays", str(self.replays)] if phase == "strangers" else []
        with self.hosts[2].start(*words, stdout=subprocess.PIPE) as process:
            return json.loads(process.communicate()[0])


def run_round(job: Job, attack: Attack, number: int) -> Round:
    windows: dict[str, Window] = {}
    reports: dict[str, Report] = {}
    for phase in PHASES if number % 2 == 0 else reversed(PHASES):
        time.sleep(SETTLE_SECONDS)
        begin = time.monotonic()
        if phase == "without":
            time.sleep(attack.arguments.seconds)
            windows[phase] = begin, time.monotonic()
        else:
            report = reports[phase] = attack.run(phase, number)
            windows[phase] = report["begin"], report["end"]
        job.check()
    return Round(windows, reports)


def run(arguments: argparse.Namespace) -> tuple[list[Round], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name, Hosts(3) as hosts:
        folder = Path(name)
        job = Job(hosts, folder)
        with recording(hosts, folder / "packets"):
            job.start()
        endpoints = [endpoint for host in hosts[:2] for endpoint in listening_endpoints(host)]
        recorded_replays = replays(recorded_packets(folder / "packets"), endpoints)
        write_replays(folder / "replays", recorded_replays)
        print(
            f"The job listens at {len(endpoints)} ports; {len(recorded_replays)} handshakes were "
            "recorded."
        )
        with decoy(hosts, len(endpoints), arguments.nice) as decoys:
            targets = {"strangers": endpoints, "decoy": decoys}
            attack = Attack(hosts, arguments, targets, folder / "replays")
            rounds = [run_round(job, attack, number) for number in range(arguments.rounds)]
        return rounds, job.end()


def percentile(steps: list[tuple[float, float]], window: Window, share: float) -> float:
    """Return a percentile of the microseconds of the steps within a window."""
    begin, end = window
    times = sorted(seconds for at, seconds in steps if begin <= at and at + seconds <= end)
    return times[round(share * (len(times) - 1))] * 1e6


def summary(rounds: list[Round], times: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for step, of_step in times.items():
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            by_phase = {
                phase: [percentile(of_step, measured.windows[phase], share) for measured in rounds]
                for phase in PHASES
            }
            yield {
                "step": f"{step}, {name}",
                "is_p99": name == "p99",
                "us": by_phase,
                "ratio": speedup(by_phase["without"], by_phase["strangers"]),
                "ratio_to_decoy": speedup(by_phase["decoy"], by_phase["strangers"]),
            }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    head = ["step", "without, µs", "decoy, µs", "strangers, µs", "ratio to without [95 %]"]
    cells = [[*head, f"p99 ≤ {P99_RATIO_MAX}", "ratio to decoy [95 %]"]]
    for row in rows:
        medians = [time_text(statistics.median(row["us"][phase])) for phase in PHASES]
        ratio: Interval = row["ratio"]
        reached = "reached" if ratio.middle <= P99_RATIO_MAX else "not reached"
        target = reached if row["is_p99"] else ""
        cells.append([row["step"], *medians, str(ratio), target, str(row["ratio_to_decoy"])])
    yield from aligned(cells)


def about_strangers(phase: str, reports: list[Report]) -> Iterator[str]:
    def total(key: str) -> dict[str, int]:
        return dict(sum((Counter(report[key]) for report in reports), Counter[str]()))

    seconds = sum(report["end"] - report["begin"] for report in reports)
    held_count = statistics.median(report["held"] for report in reports)
    connection_counts, message_counts = total("connected"), total("messages")
    refused_count, answer_bytes = (
        sum(report[key] for report in reports) for key in ("not_connected", "answer_bytes")
    )
    shares = sorted(report["processor_share"] for report in reports)
    yield (
        f"Phases `{phase}`, {seconds:.0f} s: the strangers used {shares[0]:.1%} to "
        f"{shares[-1]:.1%} of a core. {held_count:.0f} idle and dribbling connections were open "
        f"(median), because the other side closes them; {connection_counts['idle']} idle and "
        f"{connection_counts['dribbling']} dribbling ones were opened in all. Malformed messages: "
        f"{sum(message_counts.values())} ({message_counts}). {refused_count} attempts to connect "
        f"failed. Replays got {answer_bytes} bytes of first answers."
    )


def measure(arguments: argparse.Namespace) -> int:
    rounds, job_report = run(arguments)
    rows = list(summary(rounds, job_report["times"]))
    print("", *table(rows), "", sep="\n")
    for phase in PHASES[1:]:
        print(*about_strangers(phase, [measured.reports[phase] for measured in rounds]), sep="\n")
    accepted = sum(measured.reports["strangers"]["accepted"] for measured in rounds)
    print(f"The job did not fail. Accepted strangers: {accepted}.")
    print(
        f"Its {job_report['cycles']} cycles of steps have the same results, bit by bit, "
        f"on all ranks: {job_report['equal']}."
    )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine_facts(),
        "rounds": [vars(measured) for measured in rounds],
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(content, indent=1, default=vars) + "\n")
    print(f"Everything as JSON: {arguments.json}")
    return int(accepted > 0 or not job_report["equal"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=1000, help="connections")
    parser.add_argument("--dribbling", type=int, default=100, help="connections")
    parser.add_argument("--messages", type=int, default=10_000, help="in all rounds together")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10, help="of each phase")
    parser.add_argument("--nice", type=int, default=19, help="the priority of the strangers")
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/strangers.json")
    arguments = parser.parse_args()
    return run_in_child_process(lambda: measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
