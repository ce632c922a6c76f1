"""Messages between a program and the workers that call a function for it.

Messages are sent on socket pairs. Only the program, its launcher, its workers, and their forked
children hold an end of a pair. A pair has no address, so other processes cannot connect. A message
is a list of parts. The number of parts is sent first, then their lengths (u64, little-endian), then
their bytes. On a socket that does not block, advance() sends or receives what is possible without
waiting. On a blocking socket, advance() finishes the message. A message to a worker begins with a
mark: see SlotChannel.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator

# 16 random bytes, written here as hexadecimal text. So the bytes themselves do not occur in the
# code of this module, nor in a pickle that contains this code.
_MARK = bytes.fromhex("8d1f5b0e93c7426aa2e04f7719d6b83c")
_PEEK_BYTES_MAX = 1 << 16


def skip_to_mark(channel: socket.socket) -> bool:
    """Read from a blocking socket up to the end of the next mark. Return False if the other process
    has ended before the mark."""
    tail = b""  # the last bytes read so far, which may be the beginning of a mark
    while peeked := channel.recv(_PEEK_BYTES_MAX, socket.MSG_PEEK):
        position = (tail + peeked).find(_MARK)
        byte_count = len(peeked) if position < 0 else position + len(_MARK) - len(tail)
        channel.recv(byte_count, socket.MSG_WAITALL)
        if position >= 0:
            return True
        tail = (tail + peeked)[1 - len(_MARK) :]
    return False


class OutgoingMessage:
    """A message to send. Borrows its parts, which must have the buffer protocol."""

    def __init__(
        self, parts: Iterable[bytes | bytearray | memoryview], is_marked: bool = False
    ) -> None:
        views = [memoryview(part) for part in parts]
        header = struct.pack(f"<{len(views) + 1}Q", len(views), *map(len, views))
        self._unsent = [memoryview(_MARK if is_marked else b""), memoryview(header), *views]

    def advance(self, channel: socket.socket) -> bool:
        """Send what is possible now; return whether all is sent. Raise OSError if the other end
        is gone."""
        while self._unsent:
            try:
                sent_byte_count = channel.send(self._unsent[0]) if self._unsent[0] else 0
            except BlockingIOError:
                return False
            self._unsent[0] = self._unsent[0][sent_byte_count:]
            if not self._unsent[0]:
                self._unsent.pop(0)
        return True


class IncomingMessage:
    """A message to receive. Each part gets memory of its own."""

    def __init__(self) -> None:
        self.parts: list[bytearray] = []
        self.complete = False
        self._buffers = self._all_buffers()
        self._unfilled = memoryview(next(self._buffers))  # the memory that is being filled

    def advance(self, channel: socket.socket) -> bool:
        """Receive what has arrived; return whether more may come.

        Return False at the end of the message, or if the other process has ended. Raise MemoryError
        if there is not enough memory for a part.
        """
        while not self.complete:
            if not self._unfilled:
                self._begin_next_buffer()
                continue
            try:
                count = channel.recv_into(self._unfilled)
            except BlockingIOError:
                return True
            except OSError:  # the other process has died before it had read all its data
                return False
            if count == 0:
                return False
            self._unfilled = self._unfilled[count:]
        return False

    def _begin_next_buffer(self) -> None:
        buffer = next(self._buffers, None)
        self.complete = buffer is None
        if buffer is not None:
            self._unfilled = memoryview(buffer)

    def _all_buffers(self) -> Iterator[bytearray]:
        """Yield one buffer after another. The caller must fill each buffer before it asks for the
        next one, because the first two receive the number and the lengths of the parts."""
        count = bytearray(8)
        yield count
        lengths = bytearray(8 * struct.unpack("<Q", count)[0])
        yield lengths
        for (length,) in struct.iter_unpack("<Q", lengths):
            self.parts.append(bytearray(length))
            yield self.parts[-1]
