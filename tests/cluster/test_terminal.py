"""A job on a terminal: workers see one too, and Ctrl-C ends the job."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import signal
import struct
import termios
from pathlib import Path

from launched import TIMEOUT_SECONDS, command


class Terminal:
    """The command as the foreground job of a new terminal of 24 rows and 80 columns."""

    def __init__(self, workers: int, script: str, *options: str, colors: bool = False) -> None:
        self.text = ""
        # One read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", 24, 80, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            words = [command(), "run", "-n", str(workers), *options, "sh", "-c", script]
            environment = {"NO_COLOR": "" if colors else "1", "TERM": "xterm"}
            os.execvpe(words[0], words, {**os.environ, **environment})
        signal.alarm(TIMEOUT_SECONDS)  # only a guard against hanging: it ends the test run

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
        self.text += self._decoder.decode(part)
        return bool(part)


def test_workers_see_a_terminal_without_the_columns_of_the_prefix() -> None:
    terminal = Terminal(1, "test -t 1 && test -t 2 && echo terminal; stty size <&1")
    assert terminal.end() == 0
    assert "[0] terminal" in terminal.text
    assert "[0] 24 76" in terminal.text


def test_the_prefix_takes_its_columns() -> None:
    terminal = Terminal(1, "stty size <&1", "--prefix", "{rank} → {{")
    assert terminal.end() == 0
    assert "0 → {24 75" in terminal.text


def test_ranks_and_the_launcher_have_colors(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "rank 0 has written")
    script = (
        f"echo hi; if [ $FARANDOLE_RANK = 0 ]; then echo >'{fifo}'; else "
        f"read line <'{fifo}'; exit 1; fi"
    )
    terminal = Terminal(2, script, "--prefix", "{rank}| ", colors=True)
    assert terminal.end() == 1
    for line in (
        "\x1b[36m0| \x1b[0mhi\r\n",
        "\x1b[32m1| \x1b[0mhi\r\n",
        "\x1b[1mfarandole: \x1b[0mOMP_NUM_THREADS=",
        "\x1b[31m╭─ farandole: the job has failed ─",
        "\x1b[1mrank 1 ",
    ):
        assert line in terminal.text


def test_no_color_turns_all_colors_off() -> None:
    terminal = Terminal(2, "echo hi; exit $FARANDOLE_RANK")
    assert terminal.end() == 1
    assert "\x1b" not in terminal.text


def test_a_wrong_command_line_is_explained_in_red() -> None:
    terminal = Terminal(1, "", "--tag-rank", "x", colors=True)
    assert terminal.end() == 2
    assert terminal.text.startswith('\x1b[31mfarandole run: --tag-rank "x": ')


def test_a_program_that_cannot_start_is_explained_in_red(tmp_path: Path) -> None:
    terminal = Terminal(1, "", "--tag-rank", "0", str(tmp_path), colors=True)
    assert terminal.end() == 126
    text = f"farandole: `{tmp_path}` is a folder, not a program"
    assert terminal.text == f"\x1b[31m{text}\x1b[0m\r\n"


def test_a_progress_line_stays_below_other_lines() -> None:
    wait_script = "; while :; do sleep 0.05; done"
    progress_script = "trap '' USR1; trap 'exit 0' USR2; printf '\\r50%%'" + wait_script
    output_script = "trap 'echo hello' USR1; trap 'exit 0' USR2; echo ready" + wait_script
    terminal = Terminal(
        2, f'if [ "$FARANDOLE_RANK" = 0 ]; then {progress_script}; else {output_script}; fi'
    )
    terminal.read_until("[0] 50%")
    terminal.read_until("[1] ready")
    os.kill(terminal.pid, signal.SIGUSR1)
    terminal.read_until("[1] hello")
    os.kill(terminal.pid, signal.SIGUSR2)
    assert terminal.end() == 0
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


def test_control_z_without_a_shell_that_could_continue_the_job() -> None:
    """The command is the first process of the terminal's session, as with `ssh -t host farandole
    run …`. There is no shell that could continue a stopped job, so the job must go on after
    Ctrl-Z."""
    terminal = Terminal(1, "trap 'echo goes on' CONT; echo ready; while :; do sleep 0.05; done")
    terminal.read_until("[0] ready")
    terminal.type(b"\x1a")
    terminal.read_until("[0] goes on")
    terminal.type(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT


def test_a_terminal_that_nobody_reads_does_not_stop_the_launcher(tmp_path: Path) -> None:
    # The script writes more than the terminal holds, but less than the launcher buffers.
    written_file = tmp_path / "written"
    os.mkfifo(written_file)
    script = f"yes | head -c 100000; echo all > {written_file}; while :; do sleep 0.05; done"
    terminal = Terminal(1, script)
    assert written_file.read_text() == "all\n"
    terminal.type(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT
    assert "the job has ended after SIGINT" in terminal.text


def test_a_new_window_size_reaches_the_workers() -> None:
    terminal = Terminal(
        1, "trap 'stty size <&1; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    )
    terminal.read_until("ready")
    fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    assert terminal.end() == 0
    assert "[0] 30 96" in terminal.text
