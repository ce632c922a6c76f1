"""The channel between a program and the workers of one slot, which use it one after another.

In most jobs, a slot has one worker. In an elastic job, a slot gets a new worker when its worker has
failed. All workers of a slot have the same end of the channel, so a worker may find the rest of a
message that an earlier worker has not read. Therefore each message to a worker begins with a mark,
and a worker skips everything before the mark. A worker writes only after it has read its message.
At that time, this process has read everything that the earlier workers have written, because the
launcher reports the end of a worker before it starts the next worker of the slot.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from farandole.jobs.channel import OutgoingMessage
from farandole.jobs.launched_worker import Worker


class SlotChannel:
    """Sends the same message to each worker of a slot, and receives the workers' answers. Only the
    thread that follows the job uses it. It owns `channel`, and makes this socket non-blocking."""

    def __init__(
        self, channel: socket.socket, message: Sequence[bytes], selector: selectors.BaseSelector
    ) -> None:
        channel.setblocking(False)
        self._socket, self._message, self._selector = channel, message, selector
        self._outgoing_message: OutgoingMessage | None = None
        self._must_send_again = False
        self._worker: Worker | None = None

    def send_to(self, worker: Worker) -> None:
        """Send the message to a worker that has just been started, and receive its answer."""
        self._worker = worker
        if self._outgoing_message is None:
            self._outgoing_message = OutgoingMessage(self._message, is_marked=True)
        else:  # first send the rest of the last message
            self._must_send_again = True
        self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)

    def advance(self) -> bool:
        """Send and receive what is possible now. Return False if nothing more can come."""
        if self._socket.fileno() < 0:
            return True  # close() has already unregistered the socket
        self._send()
        return self.receive()

    def receive(self) -> bool:
        return self._worker is None or self._worker.receive(self._socket)

    def close(self) -> None:
        self._watch(0)
        self._socket.close()

    def _send(self) -> None:
        try:
            while self._outgoing_message is not None and self._outgoing_message.advance(
                self._socket
            ):
                must_send_again, self._must_send_again = self._must_send_again, False
                self._outgoing_message = (
                    OutgoingMessage(self._message, is_marked=True) if must_send_again else None
                )
        except OSError:  # no worker has the other end any more
            self._outgoing_message = None
        if self._outgoing_message is None:
            self._watch(selectors.EVENT_READ)

    def _watch(self, events: int) -> None:
        is_watched = self._socket in self._selector.get_map()
        if not events and is_watched:
            self._selector.unregister(self._socket)
        elif is_watched:
            self._selector.modify(self._socket, events, self.advance)
        elif events:
            self._selector.register(self._socket, events, self.advance)
