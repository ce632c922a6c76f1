#!/usr/bin/env python3
"""Record all packets of this host in a file: `record_packets.py FILE`, until the process is killed.

Before each packet, the file has the length of the packet in four bytes.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

ALL_PROTOCOLS = 3
SO_RCVBUFFORCE = 33
LENGTH_BYTES = 4


def record(file: Path) -> None:
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    print("recording", flush=True)
    with open(file, "wb", buffering=0) as out:
        while True:
            packet = packets.recv(1 << 17)
            out.write(len(packet).to_bytes(LENGTH_BYTES, "little") + packet)


def recorded_packets(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as recorded:
        while length := recorded.read(LENGTH_BYTES):
            yield recorded.read(int.from_bytes(length, "little"))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
