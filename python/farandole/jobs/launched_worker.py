"""One worker of a job, for the program that has started the job."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import threading
from collections import deque
from typing import Any

from farandole.errors import WorkerError
from farandole.jobs.channel import IncomingMessage

OUTPUT_BYTES_MAX = 1 << 20


class OutputTail:
    """The last OUTPUT_BYTES_MAX bytes of the text of two streams. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: deque[tuple[str, bytearray]] = deque()
        self._byte_count = 0

    def add(self, stream: str, content: bytes) -> None:
        with self._lock:
            if self._pieces and self._pieces[-1][0] == stream:
                self._pieces[-1][1].extend(content)
            else:
                self._pieces.append((stream, bytearray(content)))
            self._byte_count += len(content)
            while self._byte_count > OUTPUT_BYTES_MAX:
                self._drop_oldest(self._byte_count - OUTPUT_BYTES_MAX)

    def _drop_oldest(self, count: int) -> None:
        oldest = self._pieces[0][1]
        self._byte_count -= min(count, len(oldest))
        del oldest[:count]
        if not oldest:
            self._pieces.popleft()

    def text(self, stream: str = "") -> str:
        """Return the text of one stream, or of both streams in the order in which the text came."""
        with self._lock:
            pieces = [bytes(piece) for name, piece in self._pieces if stream in ("", name)]
        return b"".join(pieces).decode(errors="replace")


class Worker:
    """A worker of a job, with its state and its results so far."""

    def __init__(self, rank: int, address: str, runs_function: bool, noun: str = "rank") -> None:
        self.rank = rank  # in an elastic job, the worker's slot
        self.address = address  # the name of the worker's host
        self.pid: int | None = None  # None until the worker has started
        self.exit_code: int | None = None  # None before the worker's end; 128 + N after signal N
        # "starting", "running"; then "done", "failed", or "stopped" by stop_workers().
        self.state = "starting"
        self._runs_function, self._noun = runs_function, noun
        self._output_tail = OutputTail()
        self._incoming_message = IncomingMessage()
        self._outcome: dict[str, Any] = {}
        self._end_text = ""  # describes how the worker has ended
        self._result: Any = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        code = "" if self.exit_code is None else f", exit_code={self.exit_code}"
        return f"Worker(rank={self.rank}, pid={self.pid}, state={self.state!r}{code})"

    @property
    def stdout(self) -> str:
        """The worker's standard output, as far as it is in the last MiB of the worker's output."""
        return self._output_tail.text("stdout")

    @property
    def stderr(self) -> str:
        return self._output_tail.text("stderr")

    @property
    def output(self) -> str:
        """The output of both streams, in the order in which it reached this process."""
        return self._output_tail.text()

    @property
    def result(self) -> Any:
        """The result of the worker's function. None before the end, for scripts, and after a
        failure."""
        self._unpickle_result()
        return self._result

    @property
    def failure(self) -> WorkerError | None:
        """The error with which the worker has failed. None if it has not failed, or still runs."""
        self._unpickle_result()
        if self.state not in ("failed", "stopped"):
            return None
        return self._make_failure()

    @property
    def last_epoch_rank_and_size(self) -> tuple[int, int, int]:
        """The worker's last epoch, rank and size: see lifecycle.last_epoch_rank_and_size(). These
        values are known only after the worker's function has returned."""
        epoch, rank, size = self._outcome.get("place", (0, -1, 0))
        return epoch, rank, size

    @property
    def has_ended(self) -> bool:
        return self.state not in ("starting", "running")

    # The methods below are for the thread that follows the job.

    def record_start(self, pid: int) -> None:
        self.pid, self.state = pid, "running"

    def record_output(self, stream: str, content: bytes) -> None:
        self._output_tail.add(stream, content)

    def receive(self, channel: socket.socket) -> bool:
        """Receive a part of the worker's message; return whether more may come."""
        try:
            return self._incoming_message.advance(channel)
        except MemoryError:
            self._end_text = "has returned more than there is memory for in this process"
            channel.shutdown(socket.SHUT_RDWR)  # otherwise the worker would block in send
            return False

    def record_end(self, end_kind: str, number: int, stopping: bool) -> None:
        """Record how the worker has ended: `end_kind` is "code" or "signal". Call this after all
        data that the worker has sent was received."""
        killed = end_kind == "signal"
        self.exit_code = 128 + number if killed else number
        if self._incoming_message.complete:
            self._outcome = json.loads(self._incoming_message.parts[0])
        has_result = self._outcome.get("kind") == "result"
        if self.exit_code == 0 and (has_result or not self._runs_function):
            self.state = "done"
            return
        end = f"was killed by {_signal_name(number)}" if killed else f"exited with code {number}"
        when = "after" if has_result else "before"
        self._end_text = self._end_text or (
            f"{end} {when} its function had returned" if self._runs_function else end
        )
        self.state = "stopped" if stopping else "failed"

    def record_unknown_end(self, why: str, stopping: bool) -> None:
        """Record that the worker is lost, and that its exit code will stay unknown."""
        if not self.has_ended:
            self._end_text = f"was lost: {why}"
            self.state = "stopped" if stopping else "failed"

    def _unpickle_result(self) -> None:
        """Unpickle the result on first use. Unpickling runs code of the program, which must run in
        the thread that reads the result."""
        with self._lock:
            if self.state != "done" or not self._incoming_message.parts:
                return
            _, content, *buffers = self._incoming_message.parts
            try:
                self._result = pickle.loads(content, buffers=buffers)
            except Exception as error:
                self._end_text = (
                    f"has returned something of the type {self._outcome['type']} that cannot be "
                    f"unpickled here: {type(error).__name__}: {error}"
                )
                self.state = "failed"
            self._incoming_message.parts = []  # not reached if interrupted: a later call retries

    def _make_failure(self) -> WorkerError:
        worker_name = f"{self._noun} {self.rank}" + (
            f" (pid {self.pid})" if self.pid is not None else ""
        )
        if self._outcome.get("kind") != "failure":
            return WorkerError(f"{worker_name} {self._end_text}", self.rank, self.exit_code)
        type_name, text, trace = (self._outcome[name] for name in ("type", "text", "traceback"))
        message = f"{worker_name} raised {type_name}: {text}\n\n{trace}".rstrip()
        return WorkerError(message, self.rank, self.exit_code, (type_name, text, trace))


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
