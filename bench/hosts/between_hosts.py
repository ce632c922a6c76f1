#!/usr/bin/env python3
"""Measure an allreduce between hosts, compared with Gloo, with plain TCP and with Open MPI.

Run `.venv/bin/python bench/hosts/between_hosts.py` as root, after `./dev test python` has installed
the package. The hosts are network namespaces of this machine, and its cores are divided among
them. In each round, all ways to run the allreduce take turns, and every result is checked. Plain
TCP moves the bytes that any allreduce must move between hosts, and computes nothing. Open MPI takes
part if openmpi-bin and libopenmpi-dev are installed. The results are the medians of the ratios
within a round, with their 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import open_mpi  # noqa: E402
from compare import machine_facts  # noqa: E402
from hosts import Hosts, HostsError, run_in_child_process, run_on_all  # noqa: E402
from ratios import speedup  # noqa: E402
from report import aligned, size_text, time_text  # noqa: E402

SIZES = (8, 4 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
SHARE_BYTES_MIN = 1 << 20  # with smaller tensors, calls do not use the whole rate
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}  # bits per second
Round = dict[str, dict[str, float]]  # seconds, by way and size
PORT = 4711
OPEN_MPI = "Open MPI, "  # a way's name is this prefix and a setting
HOW_OPEN_MPI_RUNS = (
    "Open MPI runs a C++ program; the other ways run from Python. In each round, each of its "
    "settings is a job of its own. mpirun starts it after the other ways, while their ranks sleep. "
    "Its first pass over all sizes only warms up, and its second pass counts. For each size, the "
    "table shows the setting with the lower median."
)


def run(
    hosts: int, rate: str, arguments: argparse.Namespace, *, with_open_mpi: bool
) -> list[Round]:
    """Run a job on `hosts` hosts. If each rank has a core of its own, the ranks are bound to cores,
    except those of Open MPI."""
    ranks = arguments.ranks
    farandole = str(Path(sys.executable).parent / "farandole")
    with tempfile.TemporaryDirectory() as folder, Hosts(hosts) as job_hosts:
        file, secret = Path(folder) / "rounds", Path(folder) / "secret"
        subprocess.run([farandole, "secret", secret], check=True)
        job_hosts.divide_cores()
        for host in job_hosts:
            if rate != "none":
                host.set_rate(rate)
            if arguments.congestion_control:
                host.set_congestion_control(arguments.congestion_control)
        by_setting = open_mpi.commands(job_hosts, ranks, Path(folder)) if with_open_mpi else {}
        mpi_commands = {f"{OPEN_MPI}{setting}": words for setting, words in by_setting.items()}
        program = [sys.executable, str(Path(__file__).with_name("between_hosts_worker.py"))]
        program += [str(file), str(arguments.rounds), json.dumps(mpi_commands)]
        program += map(str, arguments.sizes)
        bind_to = "core" if open_mpi.has_own_cores(job_hosts, ranks) else "none"
        commands = []
        for node in range(hosts):
            options = [
                "--join",
                job_hosts[0].endpoint(PORT),
                "--nodes",
                str(hosts),
                "--node",
                str(node),
            ]
            options += ["--secret", str(secret), "-n", str(ranks), "--bind-to", bind_to]
            commands.append([farandole, "run", *options, *program])
        codes = run_on_all(job_hosts, commands, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if any(codes):
            raise HostsError(f"the exit codes are {codes}")
        return [json.loads(line) for line in file.read_text().splitlines()]


def seconds_at_limit(size: int, hosts: int, rate: str) -> float:
    """Return the shortest possible time of an allreduce between hosts that send at this rate. The
    bytes of packet headers do not count.

    Each host must send and receive 2 (h - 1) / h of a tensor's bytes in a job of h hosts.
    """
    unit = rate.lstrip("0123456789.")
    bits_per_second = float(rate.removesuffix(unit)) * UNITS[unit]
    return 2 * (hosts - 1) / hosts * size * 8 / bits_per_second


def summary(rounds: list[Round], hosts: int, rate: str) -> Iterator[dict[str, Any]]:
    for size in map(int, rounds[0]["ours"]):
        times = {way: [measured[way][str(size)] for measured in rounds] for way in rounds[0]}
        ours = times["ours"]
        row = {
            "size": size,
            "ours_us": statistics.median(ours) * 1e6,
            "gloo_us": statistics.median(times["Gloo"]) * 1e6,
            "pump_us": statistics.median(times["pump"]) * 1e6,
            "speedup": speedup(ours, times["Gloo"]),
            "of_pump": speedup(ours, times["pump"]),
        }
        if rate != "none":
            limit = seconds_at_limit(size, hosts, rate)
            row["of_limit"] = speedup(ours, [limit] * len(ours))
        if by_way := {way: of for way, of in times.items() if way.startswith(OPEN_MPI)}:
            best = min(by_way, key=lambda way: statistics.median(by_way[way]))
            row["mpi_us"] = statistics.median(by_way[best]) * 1e6
            row["mpi_setting"] = best.removeprefix(OPEN_MPI)
            row["mpi_speedup"] = speedup(ours, by_way[best])
        yield row


def lines(title: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    has_mpi, has_limit = "mpi_us" in rows[0], "of_limit" in rows[0]
    head = ["size", "ours, µs", "Gloo, µs", "speed-up [95 %]", "TCP, µs", "share of TCP [95 %]"]
    head += ["share of the limit [95 %]"] if has_limit else []
    head += ["Open MPI, µs", "setting", "speed-up [95 %]"] if has_mpi else []
    cells = []
    for row in rows:
        ours, gloo, pump = (time_text(row[f"{way}_us"]) for way in ("ours", "gloo", "pump"))
        ratios = str(row["speedup"]), str(row["of_pump"])
        cells.append([size_text(row["size"]), ours, gloo, ratios[0], pump, ratios[1]])
        if has_limit:
            cells[-1].append(str(row["of_limit"]) if row["size"] >= SHARE_BYTES_MIN else "")
        if has_mpi:
            cells[-1] += [time_text(row["mpi_us"]), row["mpi_setting"], str(row["mpi_speedup"])]
    yield from aligned([head, *cells])
    yield ""


def measure(arguments: argparse.Namespace) -> int:
    results = {}
    why_no_mpi = open_mpi.why_missing()
    print(f"Open MPI is left out: {why_no_mpi}" if why_no_mpi else HOW_OPEN_MPI_RUNS, flush=True)
    for rate in arguments.rates:
        for hosts in arguments.hosts:
            limit = "no limit" if rate == "none" else f"{rate} per host"
            title = f"{hosts} hosts × {arguments.ranks} ranks, {limit}"
            rounds = run(hosts, rate, arguments, with_open_mpi=not why_no_mpi)
            rows = list(summary(rounds, hosts, rate))
            results[title] = {"rounds": rounds, "rows": rows}
            print(*lines(title, rows), sep="\n", flush=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    content = {"machine": machine_facts(), "settings": settings, "measured": results}
    arguments.json.write_text(json.dumps(content, indent=1, default=vars) + "\n")
    print(f"Everything as JSON: {arguments.json}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument(
        "--rates", nargs="+", default=["1gbit", "none"], help="of each host, such as 1gbit, or none"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--congestion-control", help='of TCP, such as "reno"; default: that of this machine'
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/between_hosts.json")
    arguments = parser.parse_args()
    return run_in_child_process(lambda: measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
