"""What processes of a job sent when they connected to each other, found in recorded packets.

A stranger that has recorded these bytes can send them again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from stranger_traffic import Message

ETHERNET_BYTES, IPV4, TCP, SYN = 14, 0x0800, 6, 2
REPLAY_BYTES_MAX = 4096
Address = tuple[str, int]


@dataclass(frozen=True)
class Segment:
    source: Address
    target: Address
    sequence: int
    begins: bool
    payload: bytes


@dataclass
class Dialed:
    """A connection from its first packet on; it may be seen twice, on the way out and in."""

    dialer: dict[int, bytes] = field(default_factory=dict)  # payloads by sequence number
    listener: dict[int, bytes] = field(default_factory=dict)  # before the dialer's second message


def segment_of(packet: bytes) -> Segment | None:
    if int.from_bytes(packet[12:14], "big") != IPV4 or packet[ETHERNET_BYTES + 9] != TCP:
        return None
    ip = packet[ETHERNET_BYTES:]
    ip = ip[: int.from_bytes(ip[2:4], "big") or None]
    tcp = ip[(ip[0] & 15) * 4 :]
    ports = [int.from_bytes(tcp[at : at + 2], "big") for at in (0, 2)]
    addresses = [socket.inet_ntoa(ip[at : at + 4]) for at in (12, 16)]
    source, target = zip(addresses, ports, strict=True)
    sequence, begins = int.from_bytes(tcp[4:8], "big"), bool(tcp[13] & SYN)
    return Segment(source, target, sequence, begins, tcp[(tcp[12] >> 4) * 4 :])


def replays(packets: Iterable[bytes], endpoints: list[str]) -> list[Message]:
    """Return what was sent to these endpoints, for each connection that was recorded from its
    beginning and was answered."""
    dialed: dict[tuple[Address, Address], Dialed] = {}
    for segment in filter(None, map(segment_of, packets)):
        way = (segment.source, segment.target)
        if segment.begins and endpoint_of(segment.target) in endpoints:
            dialed.setdefault(way, Dialed())
        elif segment.payload and way in dialed:
            dialed[way].dialer.setdefault(segment.sequence, segment.payload)
        elif segment.payload and (one := dialed.get(way[::-1])) and len(one.dialer) == 1:
            one.listener.setdefault(segment.sequence, segment.payload)
    return [
        Message(
            kind="replay",
            endpoint=endpoint_of(target),
            content=sent[0],
            first_answer=sum(map(len, one.listener.values())),
            rest=b"".join(sent[1:])[:REPLAY_BYTES_MAX],
        )
        for (_, target), one in dialed.items()
        if len(sent := [*one.dialer.values()]) > 1 and one.listener
    ]


def endpoint_of(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
