"""A job on a terminal: workers see one too, and Ctrl-C ends the job."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios

from launched import HANG_SECONDS, command


class Terminal:
    """The command as the foreground job of a new terminal of 24 x 80."""

    def __init__(self, workers: int, script: str) -> None:
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", 24, 80, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            words = [command(), "run", "-n", str(workers), "sh", "-c", script]
            os.execvpe(words[0], words, {**os.environ, "NO_COLOR": "1"})
        signal.alarm(HANG_SECONDS)  # ends the test run with a message of its own

    def read_until(self, text: str) -> None:
        while text not in self.text:
            assert self._read(), self.text

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self.descriptor)
        _, status = os.waitpid(self.pid, 0)
        signal.alarm(0)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        try:
            part = os.read(self.descriptor, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += part.decode()
        return bool(part)


def test_workers_see_a_terminal_less_the_prefix() -> None:
    terminal = Terminal(1, "test -t 1 && test -t 2 && echo terminal; stty size <&1")
    assert terminal.end() == 0
    assert "[0] terminal" in terminal.text
    assert "[0] 24 76" in terminal.text


def test_a_progress_line_stays_below_other_lines() -> None:
    script = (
        'if [ "$FARANDOLE_RANK" = 0 ]; then printf "\\r50%%"; trap "exit 0" USR1;'
        " while :; do sleep 0.05; done; fi; sleep 0.5; echo hello; kill -USR1 0; exit 0"
    )
    # Rank 1 speaks while rank 0's progress line is open; then it ends the job through the keeper.
    script = script.replace("kill -USR1 0", "kill -USR1 $(ps -o ppid= -p $PPID)")
    terminal = Terminal(2, script)
    assert terminal.end() == 0
    assert "[0] 50%" in terminal.text
    assert "\r\x1b[K[1] hello\r\n[0] 50%" in terminal.text


def test_control_c_ends_the_job() -> None:
    terminal = Terminal(
        2, "trap 'echo got it; exit 1' INT; echo ready; while :; do sleep 0.05; done"
    )
    terminal.read_until("[0] ready")
    terminal.read_until("[1] ready")
    terminal.type(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT
    assert terminal.text.count("got it") == 2
    assert "the job has ended after SIGINT" in terminal.text


def test_a_new_window_size_reaches_the_workers() -> None:
    terminal = Terminal(
        1, "trap 'stty size <&1; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    )
    terminal.read_until("ready")
    fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    assert terminal.end() == 0
    assert "[0] 30 96" in terminal.text
