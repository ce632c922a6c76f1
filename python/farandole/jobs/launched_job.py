"""A job that this program has started through the launcher, and the thread that follows it."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from farandole.errors import CallError, FarandoleError
from farandole.jobs.launched_worker import OutputTail, Worker
from farandole.jobs.slot_channel import SlotChannel
from farandole.launcher_command import launcher_command

# The capacity of a pipe. So one read gets everything that is in a pipe when a worker has ended.
_CHUNK_BYTES = 16 * os.sysconf("SC_PAGE_SIZE")
# Exit codes of the launcher if it rejects its command line or cannot run the program.
_REJECTION_EXIT_CODES = (2, 126, 127)


@dataclass
class JobPlan:
    workers: list[Worker]  # by rank; an elastic job adds new workers when they start
    program: Sequence[str]
    flags: Sequence[str]  # the flags of `farandole run`
    environment: Mapping[str, str]
    call: Sequence[bytes] = ()  # the message for each worker; empty if there is none
    # Whether each Worker keeps its output. Otherwise the output comes through the launcher's
    # streams, which show() reads.
    keeps_output: bool = False


class LaunchedJob:
    """A job, which begins with start(). The launcher holds a pidfd of this process, so it ends the
    job when this process ends for any reason.

    The job has its own thread, which does all the work except show(). Ctrl-C interrupts only the
    main thread, so it cannot interrupt a change of the job's records. Any thread may call the
    public methods.
    """

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.messages = OutputTail()  # the output of the launcher
        self.ended = threading.Event()  # set when all processes of the job have ended
        self.stopping = False  # set before the job is ended on purpose
        self.first_failed_rank_and_pid: tuple[int, int] | None = None  # rank (or slot) and pid
        self.launcher_pid: int | None = None
        self._owner = os.getpid()
        # Set when the launcher has started, or when it is certain that it will not start.
        self._launcher_start_known = threading.Event()
        # Set when a worker has started, or when it is certain that no worker will start.
        self._worker_start_known = threading.Event()
        self._error: Exception | None = None
        self._launcher_lock = threading.Lock()  # so that end() sends no signal twice
        self._end_signal = 0
        self.exit_code: int | None = None  # the exit code of the launcher, and so of the job
        self._process: subprocess.Popen[bytes] | None = None
        self._newest_workers = {worker.rank: worker for worker in plan.workers}  # by slot
        self._channels: dict[int, SlotChannel] = {}  # by slot
        self._receive_pending_channels: Callable[[], object] = lambda: None
        # For each rank, functions that read the worker's output and return whether more may come.
        self._readers: dict[int, list[Callable[[], bool]]] = {}
        self._incomplete_line = b""  # the last line of the report, if its end is missing
        self._thread = threading.Thread(target=self._run, name="farandole-job", daemon=True)

    def start(self) -> None:
        """Start the job, and return when its first worker has started.

        Raise CallError if the launcher has rejected the job, FarandoleError if it could not be
        started.
        """
        self._thread.start()
        self.check_start()

    def start_and_show(self) -> None:
        """Do what start() and show() do, but also show what the launcher prints before the first
        worker starts, because an elastic job may have to wait for hosts."""
        self._thread.start()
        self.show()
        self.check_start()

    def check_start(self) -> None:
        """Wait for the first worker. Raise the errors of start()."""
        self._worker_start_known.wait()
        if any(worker.pid is not None for worker in self.plan.workers):
            return
        if self._error is not None:
            raise FarandoleError(f"cannot start the launcher: {self._error}")
        error_type = CallError if self.exit_code in _REJECTION_EXIT_CODES else FarandoleError
        raise error_type(f"no worker could be started: {self._launcher_error_text()}")

    def _launcher_error_text(self) -> str:
        streams = self._launcher_streams()
        if streams and not self.plan.keeps_output and not any(row[0].closed for row in streams):
            assert self._process is not None
            self.messages.add("stderr", self._process.communicate()[1])
        return self.messages.text("stderr").strip()

    def end(self, signal_number: int) -> None:
        """Send the launcher a signal, so that it ends the job.

        At a second, different signal, the launcher kills the workers at once.
        """
        with self._launcher_lock:
            self._end_signal = signal_number
            if self._process is not None:
                self._process.send_signal(signal_number)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def belongs_to_this_process(self) -> bool:
        """Return False in a forked child of the process that has started the job."""
        return self._owner == os.getpid()

    def show(self) -> None:
        """Write the job's output to sys.stdout and sys.stderr, even if a notebook has replaced
        these, until the job has ended.

        If show() raises, for example after Ctrl-C, it can be called again.
        """
        self._launcher_start_known.wait()
        with selectors.DefaultSelector() as selector:
            for pipe, stream, name in self._launcher_streams():
                if not pipe.closed:
                    decoder = codecs.getincrementaldecoder("utf-8")("replace")
                    selector.register(pipe, selectors.EVENT_READ, (stream, name, decoder))
            while selector.get_map():
                for key, _ in selector.select():
                    self._show_available_output(selector, key)
        self._thread.join()

    def has_output_left(self) -> bool:
        """Return whether output is left that show() has not read. If show() raised, this may be so
        even after the job has ended."""
        return any(not pipe.closed for pipe, _, _ in self._launcher_streams())

    def _launcher_streams(self) -> list[tuple[IO[bytes], Any, str]]:
        """Return a row for each stream of the launcher: our end of the pipe, the stream to which
        show() copies the text, and the stream's name."""
        if self._process is None:
            return []
        assert self._process.stdout is not None and self._process.stderr is not None
        return [
            (self._process.stdout, sys.stdout, "stdout"),
            (self._process.stderr, sys.stderr, "stderr"),
        ]

    def _show_available_output(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey
    ) -> None:
        stream, name, decoder = key.data
        chunk = os.read(key.fd, _CHUNK_BYTES)
        if not chunk:
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self.messages.add(name, chunk)
        _write(stream, decoder.decode(chunk, final=not chunk))

    # The job's thread runs the methods below. `own_ends` closes this process's ends of pipes and
    # sockets when the job has ended. `launcher_ends` closes this process's copies of the launcher's
    # ends when the launcher has started.

    def _run(self) -> None:
        try:
            with ExitStack() as own_ends:
                selector = own_ends.enter_context(selectors.DefaultSelector())
                self._follow(selector, self._launch(selector, own_ends))
        except Exception as error:
            self._error = error
        finally:
            self._finish()

    def _launch(self, selector: selectors.BaseSelector, own_ends: ExitStack) -> int:
        """Start the launcher, and return a pidfd of it."""
        with ExitStack() as launcher_ends:
            caller_pidfd = os.pidfd_open(os.getpid())
            launcher_ends.callback(os.close, caller_pidfd)
            report_pipe, launchers_report_pipe = _make_pipe(own_ends, launcher_ends)
            reader = partial(self._read_report, report_pipe)
            selector.register(report_pipe, selectors.EVENT_READ, reader)
            door = self._make_door(selector, own_ends, launcher_ends)
            streams = self._make_streams(selector, own_ends, launcher_ends)
            flags = ["--caller", str(caller_pidfd), "--report", str(launchers_report_pipe)]
            flags += ["--door", *map(str, door)] if door else []
            flags += ["--streams", ",".join(map(str, streams))] if streams else []
            self.ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            with self._launcher_lock:
                self._process = subprocess.Popen(
                    [launcher_command(), "run", *flags, *self.plan.flags, "--", *self.plan.program],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=self.plan.environment,
                    pass_fds=(caller_pidfd, launchers_report_pipe, *door, *streams),
                    # A terminal's Ctrl-C must not reach the launcher, because this process forwards
                    # it.
                    start_new_session=True,
                )
                if self._end_signal:  # end() was called before the launcher ran
                    self._process.send_signal(self._end_signal)
        self.launcher_pid = self._process.pid
        self._launcher_start_known.set()
        if self.plan.keeps_output:
            for pipe, _, name in self._launcher_streams():
                os.set_blocking(own_ends.enter_context(pipe).fileno(), False)
                reader = partial(_pass_on_output, pipe.fileno(), partial(self.messages.add, name))
                selector.register(pipe, selectors.EVENT_READ, reader)
        launcher_pidfd = os.pidfd_open(self._process.pid)
        own_ends.callback(os.close, launcher_pidfd)
        return launcher_pidfd

    def _make_door(
        self, selector: selectors.BaseSelector, own_ends: ExitStack, launcher_ends: ExitStack
    ) -> list[int]:
        """Make the socket pair over which the launcher sends this process a channel for each slot.
        Return the launcher's end."""
        if not self.plan.call:
            return []
        door, launchers_door = socket.socketpair(type=socket.SOCK_SEQPACKET)
        own_ends.enter_context(door).setblocking(False)
        self._receive_pending_channels = partial(self._receive_channels, door, selector)
        selector.register(door, selectors.EVENT_READ, self._receive_pending_channels)
        own_ends.callback(self._close_channels)
        return [launcher_ends.enter_context(launchers_door).fileno()]

    def _receive_channels(self, door: socket.socket, selector: selectors.BaseSelector) -> bool:
        """Receive the channels that have arrived; return whether more may come."""
        while True:
            try:
                slot_bytes, descriptors, *_ = socket.recv_fds(door, 4, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return True
            if not slot_bytes:
                return False
            if not descriptors:
                raise FarandoleError(
                    "this process has no descriptor left for the channel of a worker: raise the "
                    "limit of `ulimit -n`"
                )
            channel = socket.socket(fileno=descriptors[0])
            slot = int.from_bytes(slot_bytes, "little")
            if slot in self._channels:  # this slot's host was lost, and is now back
                self._channels[slot].close()
            self._channels[slot] = SlotChannel(channel, self.plan.call, selector)

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _make_streams(
        self, selector: selectors.BaseSelector, own_ends: ExitStack, launcher_ends: ExitStack
    ) -> list[int]:
        descriptors = []
        for worker in self.plan.workers if self.plan.keeps_output else ():
            for name in ("stdout", "stderr"):
                stream, workers_end = _make_pipe(own_ends, launcher_ends)
                descriptors.append(workers_end)
                reader = partial(_pass_on_output, stream, partial(worker.record_output, name))
                selector.register(stream, selectors.EVENT_READ, reader)
                self._readers.setdefault(worker.rank, []).append(reader)
        return descriptors

    def _follow(self, selector: selectors.BaseSelector, launcher_pidfd: int) -> None:
        selector.register(launcher_pidfd, selectors.EVENT_READ)
        launcher_has_ended = False
        while not launcher_has_ended:
            for key, _ in selector.select():
                if key.fd == launcher_pidfd:
                    launcher_has_ended = True
                elif not key.data():
                    selector.unregister(key.fileobj)
        for key in list(selector.get_map().values()):  # read what the processes wrote last
            if key.fd != launcher_pidfd:
                key.data()

    def _read_report(self, report_pipe: int) -> bool:
        chunk = _read(report_pipe)
        *lines, self._incomplete_line = (self._incomplete_line + (chunk or b"")).split(b"\n")
        for line in lines:
            self._handle_event(line.decode().split())
        return chunk != b""

    def _handle_event(self, words: list[str]) -> None:
        event, rank, *values = words
        self._receive_pending_channels()  # a worker's channel arrives before the worker starts
        if event == "started":
            self._handle_worker_start(int(rank), int(values[0]))
            return
        worker = self._newest_workers[int(rank)]
        if event == "ended":
            if (channel := self._channels.get(worker.rank)) is not None:
                channel.receive()
            for reader in self._readers.get(worker.rank, []):
                reader()
            worker.record_end(values[0], int(values[1]), self.stopping)
        else:
            self.first_failed_rank_and_pid = worker.rank, int(values[0])

    def _handle_worker_start(self, slot: int, pid: int) -> None:
        worker = self._newest_workers.get(slot)
        if worker is None or worker.pid is not None:  # happens only in an elastic job
            if worker is not None:
                worker.record_unknown_end("another worker has taken its place", self.stopping)
            worker = self._newest_workers[slot] = Worker(slot, "", self.plan.call != (), "worker")
            self.plan.workers.append(worker)
        worker.record_start(pid)
        if (channel := self._channels.get(slot)) is not None:
            channel.send_to(worker)
        self._worker_start_known.set()

    def _finish(self) -> None:
        if self._process is not None:
            if self._error is not None:
                self._process.terminate()
            self.exit_code = self._process.wait()
        reason = "the launcher has ended before it"
        if self._error is not None:
            error_text = f"{type(self._error).__name__}: {self._error}"
            reason = f"this program has ended the job, because it could not follow it: {error_text}"
        for worker in self.plan.workers:
            worker.record_unknown_end(reason, self.stopping)
        self.plan.call = ()
        self._readers.clear()
        self.ended.set()
        self._launcher_start_known.set()
        self._worker_start_known.set()


def _write(stream: Any, text: str) -> None:
    if stream is None:  # the program was started without this stream
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:  # an unusual character must not end the job
        encoding = stream.encoding
        stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _make_pipe(own_ends: ExitStack, launcher_ends: ExitStack) -> tuple[int, int]:
    """Make a pipe. Return this process's end, which reads without blocking, and the launcher's."""
    read_end, write_end = os.pipe()
    own_ends.callback(os.close, read_end)
    launcher_ends.callback(os.close, write_end)
    os.set_blocking(read_end, False)
    return read_end, write_end


def _read(descriptor: int) -> bytes | None:
    """Return what has arrived, None if nothing has arrived yet, or b"" at the end of the stream."""
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def _pass_on_output(descriptor: int, add_output: Callable[[bytes], None]) -> bool:
    chunk = _read(descriptor)
    add_output(chunk or b"")
    return chunk != b""
