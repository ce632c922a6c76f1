"""Messages between a program and the workers that call a function for it.

Messages are sent on socket pairs. Only the program, its launcher, its workers, and their forked
children hold an end of a pair, and there is no address for others to connect to. A message is a
list of parts: their count and their lengths (u64, little-endian), then their bytes. On a socket
that does not block, advance() sends or receives as much as it can at once. On a blocking socket,
advance() finishes the message. A message to a worker begins with a mark: see SlotChannel.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator

# 16 random bytes. They are written as text, so that no function whose code is sent has them.
_MARK = bytes.fromhex("8d1f5b0e93c7426aa2e04f7719d6b83c")
_PEEKED_BYTES = 1 << 16


def skip_to_mark(channel: socket.socket) -> bool:
    """Read from a blocking socket up to the end of the next mark. Return False if the other process
    has ended before that."""
    last = b""  # the last bytes that were read: a mark may have begun there
    while seen := channel.recv(_PEEKED_BYTES, socket.MSG_PEEK):
        place = (last + seen).find(_MARK)
        end = len(seen) if place < 0 else place + len(_MARK) - len(last)
        channel.recv(end, socket.MSG_WAITALL)
        if place >= 0:
            return True
        last = (last + seen)[1 - len(_MARK) :]
    return False


class OutgoingMessage:
    """A message to send. Borrows its parts, which must have the buffer protocol."""

    def __init__(
        self, parts: Iterable[bytes | bytearray | memoryview], is_marked: bool = False
    ) -> None:
        views = [memoryview(part) for part in parts]
        head = struct.pack(f"<{len(views) + 1}Q", len(views), *map(len, views))
        self._rest = [memoryview(_MARK if is_marked else b""), memoryview(head), *views]

    def advance(self, channel: socket.socket) -> bool:
        """Send what is possible now; return whether all is sent. Raise OSError if the other end
        is gone."""
        while self._rest:
            try:
                sent = channel.send(self._rest[0]) if self._rest[0] else 0
            except BlockingIOError:
                return False
            self._rest[0] = self._rest[0][sent:]
            if not self._rest[0]:
                self._rest.pop(0)
        return True


class IncomingMessage:
    """A message to receive. Each part gets memory of its own."""

    def __init__(self) -> None:
        self.parts: list[bytearray] = []
        self.complete = False
        self._targets = self._all_targets()
        self._rest = memoryview(next(self._targets))  # the memory that is being filled

    def advance(self, channel: socket.socket) -> bool:
        """Receive what has arrived; return whether more may come.

        Return False at the end of the message, or if the other process has ended. Raise MemoryError
        if there is not enough memory for a part.
        """
        while not self.complete:
            if not self._rest:
                self._begin_next_target()
                continue
            try:
                count = channel.recv_into(self._rest)
            except BlockingIOError:
                return True
            except OSError:  # the other process has died before it had read everything
                return False
            if count == 0:
                return False
            self._rest = self._rest[count:]
        return False

    def _begin_next_target(self) -> None:
        target = next(self._targets, None)
        self.complete = target is None
        if target is not None:
            self._rest = memoryview(target)

    def _all_targets(self) -> Iterator[bytearray]:
        """Yield the memory to fill next. Continue only when it is full, because the number and the
        lengths of the parts are themselves received."""
        count = bytearray(8)
        yield count
        lengths = bytearray(8 * struct.unpack("<Q", count)[0])
        yield lengths
        for (length,) in struct.iter_unpack("<Q", lengths):
            self.parts.append(bytearray(length))
            yield self.parts[-1]
