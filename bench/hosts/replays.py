"""Finds in recorded packets the bytes that processes of a job sent when they connected to each
other.

A stranger can record these bytes and send them again.
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
    is_syn: bool
    payload: bytes


@dataclass
class DialedConnection:
    """The packets of one connection. Each packet may be recorded twice: when it leaves one host and
    when it arrives at the other."""

    dialer: dict[int, bytes] = field(default_factory=dict)  # payload by sequence number
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
    sequence, is_syn = int.from_bytes(tcp[4:8], "big"), bool(tcp[13] & SYN)
    return Segment(source, target, sequence, is_syn, tcp[(tcp[12] >> 4) * 4 :])


def replays(packets: Iterable[bytes], endpoints: list[str]) -> list[Message]:
    """Return the messages to these endpoints. Leave out connections that were recorded only in
    part, or not answered."""
    dialed: dict[tuple[Address, Address], DialedConnection] = {}
    for segment in filter(None, map(segment_of, packets)):
        ends = (segment.source, segment.target)
        if segment.is_syn and endpoint_of(segment.target) in endpoints:
            dialed.setdefault(ends, DialedConnection())
        elif segment.payload and ends in dialed:
            dialed[ends].dialer.setdefault(segment.sequence, segment.payload)
        elif (
            segment.payload
            and (connection := dialed.get(ends[::-1]))
            and len(connection.dialer) == 1
        ):
            connection.listener.setdefault(segment.sequence, segment.payload)
    return [
        Message(
            kind="replay",
            endpoint=endpoint_of(target),
            content=sent[0],
            first_answer=sum(map(len, connection.listener.values())),
            later_bytes=b"".join(sent[1:])[:REPLAY_BYTES_MAX],
        )
        for (_, target), connection in dialed.items()
        if len(sent := [*connection.dialer.values()]) > 1 and connection.listener
    ]


def endpoint_of(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
