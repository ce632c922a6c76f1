#!/usr/bin/env python3
"""Strangers: connections to the ports of a job by processes that do not belong to the job.

    tools/stranger_traffic.py HOST:PORT… --idle 200 --dribbling 20 --messages 1000 --seconds 5

Some connections stay idle. Some are "dribbling": they send one byte every 100 ms. If the job closes
an idle or dribbling connection, the script opens it again after 0 to 2 seconds. The script also
sends malformed messages, each on its own connection. Such a connection stays open until the job
closes it, but for at most one second. At the end, the script prints a report as JSON.

A job must not answer strangers. Only a replay, which repeats recorded bytes of a real connection,
begins with a valid message, so the job answers once. The answer has new random numbers, so the next
bytes of the replay are not valid. A replay counts as accepted if it receives more than the first
answer. Every other stranger counts as accepted if it receives anything.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import selectors
import socket
import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from hosts import Host, run_command

CONNECT_SECONDS_MAX = 0.02
DRIBBLE_SECONDS = 0.1
CLOSED_SECONDS_MAX = 2.0  # before we open a closed connection again
PAUSE_SECONDS = 0.005  # between small groups of connections and bytes
MESSAGE_SECONDS_MAX = 1.0  # before we close the connection of a message
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(189)  # the beginning of a TLS ClientHello
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def listening_endpoints(host: Host) -> list[str]:
    """List HOST:PORT of all ports at which processes of this host listen on its network."""
    rows = [line.split() for line in run_command(*host.command("ss", "-Hltn")).splitlines()]
    return sorted(row[3] for row in rows if row[3].startswith(f"{host.v4}:"))


@dataclass(eq=False)
class Stranger:
    """One connection to the job."""

    kind: str
    socket: socket.socket
    closes_at: float = float("inf")
    sent: int = 0  # bytes that a dribbling connection has sent
    received: int = 0  # bytes
    first_answer: int = 0  # in bytes, as in Message
    later_bytes: bytes = b""


@dataclass(frozen=True)
class Message:
    kind: str
    endpoint: str
    content: bytes
    first_answer: int = 0  # how many bytes the job may answer to a replay
    later_bytes: bytes = b""  # what a replay sends after the first answer


def write_replays(file: Path, replays: list[Message]) -> None:
    rows = [{name: as_text(value) for name, value in vars(replay).items()} for replay in replays]
    file.write_text(json.dumps(rows))


def as_text(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def read_replays(file: Path) -> list[Message]:
    rows = json.loads(file.read_text())
    as_bytes = [
        {name: bytes.fromhex(row[name]) for name in ("content", "later_bytes")} for row in rows
    ]
    return [Message(**row | given) for row, given in zip(rows, as_bytes, strict=True)]


class Strangers:
    def __init__(self, endpoints: list[str], replays: list[Message], seed: int) -> None:
        self.endpoints, self.replays, self.random_source = endpoints, replays, random.Random(seed)
        self.selector = selectors.DefaultSelector()
        self.idle, self.dribbling = set[Stranger](), set[Stranger]()
        self.sending: deque[Stranger] = deque()  # connections with malformed messages, oldest first
        self.scheduled: list[tuple[float, str]] = []  # a heap of (time, kind of connection)
        self.connected, self.messages = Counter[str](), Counter[str]()
        self.not_connected = self.answer_bytes = self.accepted = 0
        self.open_counts: list[int] = []  # of idle and dribbling connections, every 100 ms

    def run(self, wanted: dict[str, int], messages: int, seconds: float) -> None:
        begin = now = time.monotonic()
        next_dribble = begin
        for kind, count in wanted.items():
            for _ in range(count):
                self.open_later(kind)
        # On a busy machine, count for longer, so that there are enough counts.
        while now < begin + seconds or len(self.open_counts) < 5 * seconds:
            while self.scheduled and self.scheduled[0][0] <= now:
                self.open_lasting(heapq.heappop(self.scheduled)[1])
            if now >= next_dribble:
                self.dribble()
                next_dribble += DRIBBLE_SECONDS
            while self.messages.total() < min(messages, messages * (now - begin) / seconds):
                self.send_message()
            self.read_and_close(PAUSE_SECONDS)
            now = time.monotonic()
        while self.messages.total() < messages:
            self.send_message()
            self.read_and_close(0)

    def connect(self, kind: str, endpoint: str) -> Stranger | None:
        address, port = endpoint.rsplit(":", 1)
        try:
            new_socket = socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS_MAX)
        except OSError:
            self.not_connected += 1
            return None
        new_socket.setblocking(False)
        self.connected[kind] += 1
        stranger = Stranger(kind, new_socket)
        self.selector.register(new_socket, selectors.EVENT_READ, stranger)
        return stranger

    def open_later(self, kind: str) -> None:
        delay = self.random_source.uniform(0, CLOSED_SECONDS_MAX)
        heapq.heappush(self.scheduled, (time.monotonic() + delay, kind))

    def open_lasting(self, kind: str) -> None:
        stranger = self.connect(kind, self.random_source.choice(self.endpoints))
        if stranger is None:
            self.open_later(kind)
        else:
            self.connections_of(kind).add(stranger)

    def connections_of(self, kind: str) -> set[Stranger]:
        return self.idle if kind == "idle" else self.dribbling

    def dribble(self) -> None:
        self.open_counts.append(len(self.idle) + len(self.dribbling))
        for stranger in list(self.dribbling):
            self.send(stranger, HELLO[stranger.sent : stranger.sent + 1] or b"\0")
            stranger.sent += 1

    def send_message(self) -> None:
        message = self.malformed_message()
        self.messages[message.kind] += 1
        if (stranger := self.connect(message.kind, message.endpoint)) is None:
            return
        stranger.closes_at = time.monotonic() + MESSAGE_SECONDS_MAX
        stranger.first_answer, stranger.later_bytes = message.first_answer, message.later_bytes
        self.sending.append(stranger)
        self.send(stranger, message.content)

    def malformed_message(self) -> Message:
        random_source, endpoint = self.random_source, self.random_source.choice(self.endpoints)
        begin = HELLO[: random_source.randrange(1, len(HELLO))]
        random_bytes = random_source.randbytes(random_source.randrange(1, 3000))
        contents = {
            "random": random_bytes,
            "truncated TLS": begin,
            "TLS and random": begin + random_bytes,
        }
        contents |= {"HTTP": HTTP, "our name": b"FARN" + random_bytes}
        kinds = [*contents, "replay"] if self.replays else [*contents]
        if (kind := random_source.choice(kinds)) == "replay":
            return random_source.choice(self.replays)
        return Message(kind, endpoint, contents[kind])

    def send(self, stranger: Stranger, data: bytes) -> None:
        try:
            stranger.socket.send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.close(stranger)

    def read_and_close(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            self.read(key.data)
        now = time.monotonic()
        while self.sending and self.sending[0].closes_at <= now:
            self.close(self.sending.popleft())

    def read(self, stranger: Stranger) -> None:
        try:
            received = len(stranger.socket.recv(1 << 16))
        except OSError:
            received = 0
        if received == 0:
            self.close(stranger)
            return
        before = stranger.received
        stranger.received += received
        self.answer_bytes += received
        self.accepted += before <= stranger.first_answer < stranger.received
        if before < stranger.first_answer <= stranger.received:
            self.send(stranger, stranger.later_bytes)

    def close(self, stranger: Stranger) -> None:
        if stranger.socket.fileno() < 0:
            return
        self.selector.unregister(stranger.socket)
        stranger.socket.close()
        if stranger.kind in ("idle", "dribbling"):
            self.connections_of(stranger.kind).discard(stranger)
            self.open_later(stranger.kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoints", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--dribbling", type=int, default=20)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--replays", type=Path, help="messages, as written by write_replays()")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    replays = read_replays(arguments.replays) if arguments.replays else []
    strangers = Strangers(arguments.endpoints, replays, arguments.seed)
    wanted = {"idle": arguments.idle, "dribbling": arguments.dribbling}
    begin, processor_begin = time.monotonic(), time.process_time()
    strangers.run(wanted, arguments.messages, arguments.seconds)
    end = time.monotonic()
    report = {
        "begin": begin,
        "end": end,
        "processor_share": (time.process_time() - processor_begin) / (end - begin),
        "connected": strangers.connected,
        "not_connected": strangers.not_connected,
        "messages": strangers.messages,
        "held": statistics.median(strangers.open_counts),
        "answer_bytes": strangers.answer_bytes,
        "accepted": strangers.accepted,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
