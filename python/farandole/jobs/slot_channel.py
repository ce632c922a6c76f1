"""The channel between a program and the workers of one slot, which use it one after another.

In most jobs, a slot has one worker. In an elastic job, a slot whose worker has failed gets a new
one. All workers of a slot have the same end of the channel, so a worker may find the rest of a
message that an earlier one has not read. So each message to a worker begins with a mark, and a
worker begins to read there. A worker writes only after it has read its message. By then, this
process has read everything that the earlier workers have written, because the launcher starts a
worker only when it has reported the end of the last one.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from farandole.jobs.channel import OutgoingMessage
from farandole.jobs.launched_worker import Worker


class SlotChannel:
    """Sends the same message to each worker of a slot, and receives what they answer. For the
    thread that follows the job. Owns `end`, which becomes non-blocking."""

    def __init__(
        self, end: socket.socket, message: Sequence[bytes], selector: selectors.BaseSelector
    ) -> None:
        end.setblocking(False)
        self._end, self._message, self._selector = end, message, selector
        self._outgoing: OutgoingMessage | None = None
        self._must_send_again = False
        self._worker: Worker | None = None

    def begin(self, worker: Worker) -> None:
        """Send the message to a worker that has just been started, and receive its answer."""
        self._worker = worker
        if self._outgoing is None:
            self._outgoing = OutgoingMessage(self._message, is_marked=True)
        else:  # it cannot be interrupted in the middle
            self._must_send_again = True
        self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)

    def advance(self) -> bool:
        """Send and receive what is possible now. Return False if nothing more can come."""
        if self._end.fileno() < 0:
            return True  # it was closed meanwhile, so nobody waits for it any more
        self._send()
        return self.receive()

    def receive(self) -> bool:
        return self._worker is None or self._worker.receive(self._end)

    def close(self) -> None:
        self._watch(0)
        self._end.close()

    def _send(self) -> None:
        try:
            while self._outgoing is not None and self._outgoing.advance(self._end):
                again, self._must_send_again = self._must_send_again, False
                self._outgoing = OutgoingMessage(self._message, is_marked=True) if again else None
        except OSError:  # no worker has the other end any more
            self._outgoing = None
        if self._outgoing is None:
            self._watch(selectors.EVENT_READ)

    def _watch(self, events: int) -> None:
        is_watched = self._end in self._selector.get_map()
        if not events and is_watched:
            self._selector.unregister(self._end)
        elif is_watched:
            self._selector.modify(self._end, events, self.advance)
        elif events:
            self._selector.register(self._end, events, self.advance)
