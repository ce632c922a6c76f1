"""One rank of between_hosts.py: it runs an allreduce of each size in each way, in rounds.

All ways take turns, so that a short load on the machine affects each of them. Each call is timed,
and its result checked. Rank 0 appends a line of JSON to the given file after each round. When it is
Open MPI's turn, rank 0 runs mpirun, and the other ranks sleep in a barrier.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist

import farandole.torch as hvd

GLOO_PORT = 5055
PUMP_PORT = 5056
INTERFACE = "eth0"
PUMP_CHUNK = 1 << 20
MPIRUN_SECONDS_MAX = 300


def connect(address: str) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, PUMP_PORT), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.01)


class Pump:
    """Plain TCP in a ring of one rank per host: each host sends to the next one and, at the same
    time, receives from the previous one. It only moves the bytes that every allreduce must move, so
    no allreduce can be faster.

    Each host must send and receive 2 (h - 1) / h of a tensor's bytes in a job of h hosts (Patarasuk
    and Yuan, 2009, with one sum per host).
    """

    def __init__(self, own_address: str) -> None:
        addresses = list(dict.fromkeys(hvd.allgather_object(own_address)))
        self.hosts = len(addresses)
        self.takes_part = hvd.local_rank() == 0
        if not self.takes_part:
            return
        self.own = torch.zeros(PUMP_CHUNK, dtype=torch.uint8).numpy()
        self.received = self.own.copy()
        with closing(socket.create_server((own_address, PUMP_PORT))) as server:
            next_address = addresses[(addresses.index(own_address) + 1) % self.hosts]
            self.outgoing = connect(next_address)
            self.incoming, _ = server.accept()

    def __call__(self, tensor: torch.Tensor) -> None:
        if not self.takes_part:
            return
        count = tensor.nbytes * 2 * (self.hosts - 1) // self.hosts
        sender = threading.Thread(target=self.send, args=(count,))
        sender.start()
        while count > 0:
            received_bytes = self.incoming.recv_into(self.received, min(count, PUMP_CHUNK))
            if received_bytes == 0:
                raise ConnectionError("the pump of the previous host has ended")
            count -= received_bytes
        sender.join()

    def send(self, count: int) -> None:
        view = memoryview(self.own)
        while count > 0:
            count -= self.outgoing.send(view[: min(count, PUMP_CHUNK)])


def own_address() -> str:
    """Return the address from which this host connects to node 0; on node 0, its own address."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((os.environ["MASTER_ADDR"], GLOO_PORT))  # connect() of UDP sends nothing
        return str(probe.getsockname()[0])


def ours(tensor: torch.Tensor) -> None:
    hvd.allreduce_(tensor, op=hvd.Sum, name=f"bench {tensor.numel()}")


def measure(way: Callable[[torch.Tensor], None], size: int, calls: int, checked: bool) -> float:
    """Return the seconds of one call: the mean of some calls without a barrier between them."""
    ranks = hvd.size()
    tensors = [torch.full((size // 4,), float(hvd.rank() + 1)) for _ in range(calls)]
    hvd.barrier()
    begin = time.perf_counter()
    for tensor in tensors:
        way(tensor)
    seconds = (time.perf_counter() - begin) / calls
    expected = ranks * (ranks + 1) / 2
    for tensor in tensors:
        if checked and not bool((tensor == expected).all()):
            raise SystemExit(f"{size} bytes: the result is {tensor[:4]}…, not {expected}")
    return seconds


def calls_of(size: int) -> int:
    return 20 if size <= 65536 else 1


def measure_open_mpi(command: list[str], sizes: list[int]) -> dict[int, float]:
    """Return the seconds of one call by size, on rank 0 only."""
    times: dict[int, float] = {}
    if hvd.rank() == 0:
        words = [str(word) for size in sizes for word in (size, calls_of(size))]
        process = subprocess.run(
            [*command, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=MPIRUN_SECONDS_MAX,
        )
        if process.returncode != 0:
            raise SystemExit(f"mpirun ended with exit code {process.returncode}: {process.stderr}")
        times = {int(size): seconds for size, seconds in json.loads(process.stdout).items()}
    hvd.barrier()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("rounds", type=int)
    parser.add_argument("open_mpi", type=json.loads, help="the commands by way, as a JSON object")
    parser.add_argument("sizes", type=int, nargs="+")
    arguments = parser.parse_args()
    hvd.init()
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    method = f"tcp://{os.environ['MASTER_ADDR']}:{GLOO_PORT}"
    dist.init_process_group("gloo", init_method=method, rank=hvd.rank(), world_size=hvd.size())
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "ours": ours,
        "Gloo": dist.all_reduce,
        "pump": Pump(own_address()),
    }
    for number in range(-1, arguments.rounds):  # the first round only warms up
        times: dict[str, dict[int, float]] = {}
        for way, call in ways.items():
            times[way] = {}
            for size in arguments.sizes:
                times[way][size] = measure(call, size, calls_of(size), checked=way != "pump")
        for way, command in arguments.open_mpi.items():
            times[way] = measure_open_mpi(command, arguments.sizes)
        if hvd.rank() == 0 and number >= 0:
            with open(arguments.file, "a") as file:
                file.write(json.dumps(times) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
