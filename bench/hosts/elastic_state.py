#!/usr/bin/env python3
"""Measure how long new workers on other hosts wait for the state of an elastic job.

Run `.venv/bin/python bench/hosts/elastic_state.py` as root, after `./dev test python` has installed
the package. The hosts are network namespaces of this machine, whose links are limited. Two workers
on two hosts have the state, half of which belongs to the optimizer; then workers on other hosts
join, one after another. The script measures how long a new worker takes to get the model, and to
get the whole state and save a copy of it. Just before each measurement, it measures how long plain
TCP takes to send the same number of bytes to the same host.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from hosts import Host, Hosts, HostsError, run_in_child_process  # noqa: E402
from ssh_servers import SshServers  # noqa: E402

WORKER = Path(__file__).with_name("elastic_state_worker.py")
WORKERS_AT_START = 2
TCP_PROGRAM = """
import socket, sys, time
address, count = sys.argv[2], int(sys.argv[3])
buffer = bytearray(1 << 20)
if sys.argv[1] == "receive":
    server = socket.create_server((address, 5999))
    print("ready", flush=True)
    connection, _ = server.accept()
    begin = time.monotonic()
    while count > 0:
        count -= connection.recv_into(buffer)
    print(time.monotonic() - begin)
else:
    connection = socket.create_connection((address, 5999))
    for _ in range(count // len(buffer)):
        connection.sendall(buffer)
"""


def seconds_of_tcp(sender: Host, receiver: Host, count: int) -> float:
    words = ("-c", TCP_PROGRAM, "receive", receiver.address, str(count))
    receiving = receiver.start(sys.executable, *words, stdout=subprocess.PIPE)
    assert receiving.stdout is not None
    receiving.stdout.readline()
    sender.start(sys.executable, "-c", TCP_PROGRAM, "send", receiver.address, str(count)).wait()
    return float(receiving.communicate()[0])


def seconds_of_syncs(
    hosts: Hosts, servers: SshServers, folder: Path, megabytes: int, joiners: int
) -> dict[int, dict[str, float]]:
    """Return how long each new worker waited for the model and for the whole state. The keys are
    the sizes of the group after this worker has joined."""
    hosts_file = folder / "hosts"
    hosts_file.write_text("host1\nhost2\n")
    farandole = str(Path(sys.executable).parent / "farandole")
    words = [farandole, "run", "-i", str(servers.identity), "-n", "2", "--min-workers", "2"]
    words += ["--host-discovery-script", f"cat {hosts_file}", sys.executable, str(WORKER)]
    words += [str(megabytes), str(WORKERS_AT_START + joiners)]
    job = hosts[0].start(*words, stdout=subprocess.PIPE)
    assert job.stdout is not None
    output = ""
    for line in job.stdout:
        output += line
        if len(re.findall(r"state .* of 2:", output)) == WORKERS_AT_START:
            hosts_file.write_text(
                "".join(f"host{1 + n}\n" for n in range(WORKERS_AT_START + joiners))
            )
    if job.wait() != 0 or output.count("equal") != WORKERS_AT_START + joiners:
        raise HostsError(f"the job has failed:\n{output}")
    seconds_by_size: dict[int, dict[str, float]] = {}
    for part, rank, size, s in re.findall(r"(\w+) on rank (\d+) of (\d+): ([\d.]+) s", output):
        if int(rank) + 1 == int(size) > WORKERS_AT_START:  # the worker that has joined last
            seconds_by_size.setdefault(int(size), {})[part] = float(s)
    return seconds_by_size


def measure(megabytes: int, joiners: int, rate: str) -> int:
    count = megabytes << 20
    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts(1 + WORKERS_AT_START + joiners) as hosts,
        SshServers(hosts, Path(folder) / "ssh") as servers,
    ):
        for host in hosts:
            host.set_rate(rate)
        tcp_time = min(seconds_of_tcp(hosts[1], hosts[-1], count) for _ in range(3))
        print(f"{megabytes} MiB at {rate}: plain TCP takes {tcp_time:.2f} s", flush=True)
        seconds_by_size = seconds_of_syncs(hosts, servers, Path(folder), megabytes, joiners)
        for size, seconds in sorted(seconds_by_size.items()):
            model, state = seconds["model"], seconds["state"]
            print(
                f"{size} hosts: the model takes {model:.2f} s ({tcp_time / 2 / model:.0%} of the "
                f"speed of plain TCP), the state {state:.2f} s ({tcp_time / state:.0%})"
            )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=320)
    parser.add_argument("--joiners", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    arguments = parser.parse_args()
    return run_in_child_process(
        lambda: measure(arguments.megabytes, arguments.joiners, arguments.rate)
    )


if __name__ == "__main__":
    sys.exit(main())
