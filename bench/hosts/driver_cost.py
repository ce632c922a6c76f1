#!/usr/bin/env python3
"""Measure how much time the driver needs to start a job over ssh, by the number of hosts.

A small program stands in for ssh and for the launchers on the hosts (bench/peers/stand_in_ssh.cc),
so there is no worker and no network. The start is complete when two things have happened: all hosts
have received their orders, and node 0 has reported that the job begins. The script writes
docs/start.svg.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "tools"))
import svg_plot  # noqa: E402
from progress import say  # noqa: E402

LAUNCHER = ROOT / "build/dev/apps/farandole/farandole"
SOURCE = ROOT / "bench/peers/stand_in_ssh.cc"
PLOT = ROOT / "docs/start.svg"
UNITS = svg_plot.Units(across=lambda power: str(1 << power))
START_SECONDS_MAX = 300


@dataclass
class Start:
    seconds: float  # from the command to the beginning of the job
    processor_seconds: float  # processor time of the driver in these seconds
    order_bytes: int  # bytes of all orders that the driver has sent


class StandIns:
    """The stand-in programs of one job, which connect to the socket of this process."""

    def __init__(self, path: Path, count: int) -> None:
        self.count = count
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(count)
        self.connections: list[socket.socket] = []

    def wait_for_orders(self, driver: subprocess.Popen[bytes]) -> int:
        """Wait until each stand-in has received its order. Return the bytes of all orders
        together."""
        deadline = time.monotonic() + START_SECONDS_MAX
        byte_counts: dict[int, int] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            while len(byte_counts) < self.count:
                if driver.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{len(byte_counts)} of {self.count} hosts have had an order")
                for key, _ in selector.select(1):
                    if key.fileobj is self.listener:
                        connection, _ = self.listener.accept()
                        self.connections.append(connection)
                        selector.register(connection, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket):
                        byte_counts[key.fd] = int(key.fileobj.recv(100))
                        selector.unregister(key.fileobj)
        return sum(byte_counts.values())

    def begin(self) -> None:
        """Tell the stand-ins to go on, so that node 0 reports that the job begins."""
        for connection in self.connections:
            connection.sendall(b"b")

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listener.close()


def processor_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def start(count: int, folder: Path, environment: dict[str, str]) -> Start:
    hostfile, path = folder / "hostfile", folder / "socket"
    hostfile.write_text("".join(f"host{number}\n" for number in range(count)))
    stand_ins = StandIns(path, count)
    began = time.monotonic()
    words = [str(LAUNCHER), "run", "--hostfile", str(hostfile), "true"]
    with subprocess.Popen(words, env=environment | {"STAND_IN_SOCKET": str(path)}) as driver:
        try:
            order_bytes = stand_ins.wait_for_orders(driver)
            stand_ins.begin()
            seconds = time.monotonic() - began
            result = Start(seconds, processor_seconds(driver.pid), order_bytes)
        finally:
            stand_ins.end()
            path.unlink()
    if driver.returncode != 0:
        raise SystemExit(f"the job has exit code {driver.returncode}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    version = subprocess.run([LAUNCHER, "--version"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        options = ("-std=c++20", "-O2", "-static")
        subprocess.run(["c++", *options, SOURCE, "-o", folder / "bin/ssh"], check=True)
        environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "STAND_IN_GREETING": f"farandole agent {version.stdout.split()[1]}",
        }
        rounds: dict[int, list[Start]] = {count: [] for count in arguments.hosts}
        for number in range(arguments.rounds):
            for count in arguments.hosts:
                rounds[count].append(start(count, folder, environment))
            say(f"round {number + 1} of {arguments.rounds}")
    print("| hosts | driver, ms of processor time | µs a host | wall time, ms | KB of orders |")
    print("| --- | --- | --- | --- | --- |")
    curves: dict[str, dict[int, float]] = {"processor time": {}, "wall time": {}}
    for count, starts in rounds.items():
        processor = statistics.median(start.processor_seconds for start in starts)
        wall = statistics.median(start.seconds for start in starts)
        curves["processor time"][count] = processor * 1e6
        curves["wall time"][count] = wall * 1e6
        print(
            f"| {count:,} | {processor * 1e3:.1f} | {processor / count * 1e6:.0f} | "
            f"{wall * 1e3:.0f} | {starts[0].order_bytes / 1e3:.1f} |"
        )
    PLOT.write_text(svg_plot.plot("the start of a job at the driver, by hosts", curves, UNITS))


if __name__ == "__main__":
    main()
