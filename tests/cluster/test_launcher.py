"""Output, exit codes and signals of `farandole run`. These tests need no framework."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from launched import CommandRun, command, run, run_shell

# A script that prints a line and then waits for a signal.
WAIT_SCRIPT = "echo ready; while :; do sleep 0.05; done"


def test_lines_carry_their_rank() -> None:
    job = run_shell(2, "echo out; echo err >&2; printf 'no end'")
    assert job.process.returncode == 0
    assert sorted(job.output.splitlines()) == ["[0] no end", "[0] out", "[1] no end", "[1] out"]
    assert "[0] err\n" in job.errors
    assert "[1] err\n" in job.errors


def test_lines_of_different_ranks_are_never_mixed() -> None:
    # The script writes pieces that end in the middle of lines.
    script = (
        "i=0; while [ $i -lt 300 ]; do printf 'line\\nbe'; printf 'gin '; i=$((i+1)); done; echo"
    )
    job = run_shell(3, script)
    lines = job.output.splitlines()
    assert len(lines) == 3 * 301
    assert all(re.fullmatch(r"\[[012]\] (begin )?(line)?", line) for line in lines)


def test_a_progress_line_stays_whole() -> None:
    job = run_shell(2, "printf '\\r 10%%'; printf '\\r 20%%'; printf '\\r100%%\\n'; echo done")
    for line in job.output.splitlines():
        assert re.fullmatch(r"(\[[01]\] +\d+%\r?)+|\[[01]\] done", line), job.output


def test_endless_lines_are_cut() -> None:
    job = run_shell(1, "head -c 1000000 /dev/zero | tr '\\0' x")
    assert job.output.replace("[0] ", "").replace("\n", "") == "x" * 1_000_000
    assert job.output.count("\n") > 1


def test_a_flag_with_an_empty_value_leaves_the_next_word_alone() -> None:
    job = run("run", "--timeline=", "-n", "1", "sh", "-c", "echo $0", "--timeline=")
    assert (job.process.returncode, job.output) == (0, "[0] --timeline=\n")
    job = run("run", "--output-dir=", "-n", "1", "true")
    assert job.process.returncode == 2
    assert '--output-dir "": which folder?' in job.errors


def test_workers_get_their_ranks_and_sizes() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    script = "echo " + " ".join(f"$FARANDOLE_{name}" for name in names)
    job = run_shell(2, script)
    assert sorted(job.output.splitlines()) == ["[0] 0 2 0 2 0 1", "[1] 1 2 1 2 0 1"]


def test_workers_get_the_variables_of_torchrun() -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR TORCHELASTIC_RUN_ID"
    script = "echo " + " ".join(f"${name}" for name in names.split())
    job = run_shell(2, script)
    assert sorted(job.output.splitlines()) == [
        f"[{rank}] {rank} 2 {rank} 2 0 127.0.0.1 started-by-farandole-run" for rank in range(2)
    ]


def test_a_job_within_a_job_has_variables_of_its_own() -> None:
    """A worker starts a job. The outer job may also be one of torchrun, whose store the inner job
    must not use."""
    outer = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "5"),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "7"),
        **dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"), "True"),
        **{"MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"},
    }
    script = "echo " + " ".join(f"${name}" for name in outer)
    inner_job = f"{command()} run -n 1 sh -c '{script} ports $MASTER_PORT'"
    job = run("run", "-n", "1", "sh", "-c", f"{inner_job} $MASTER_PORT", environment=outer)
    (line,) = job.output.splitlines()
    ports = re.fullmatch(
        r"\[0\] \[0\] 0 0 0 1 1 started-by-farandole-run  ?127\.0\.0\.1 (\d+) ports (\d+)", line
    )
    assert ports and ports[1] == ports[2] != "1", job.output


def test_jobs_side_by_side_have_different_ports() -> None:
    script = "echo $MASTER_PORT; echo ready; exec sleep 1000"
    jobs = [CommandRun("run", "-n", "1", "sh", "-c", script) for _ in range(50)]
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(job)
        for job in jobs:
            job.read_until("ready")
        ports = {job.output.splitlines()[0].removeprefix("[0] ") for job in jobs}
        assert len(ports) == 50 and all(0 < int(port) < 65536 for port in ports), ports
        for job in jobs:
            job.send(signal.SIGTERM)
            job.end()


def test_flags_become_settings() -> None:
    script = "echo $FARANDOLE_START_TIMEOUT $FARANDOLE_LOG_LEVEL"
    job = run("run", "-n", "1", "--start-timeout", "77", "--log-level=info", "sh", "-c", script)
    assert job.output == "[0] 77 info\n"


def test_cores_are_divided_and_the_launcher_says_so() -> None:
    job = run_shell(2, "echo $OMP_NUM_THREADS $PYTHONUNBUFFERED")
    assert re.fullmatch(r"\[0\] [1-9]\d* 1", sorted(job.output.splitlines())[0])
    assert "OMP_NUM_THREADS" in job.errors
    variables = {"OMP_NUM_THREADS": "5", "PYTHONUNBUFFERED": "x"}
    script = "echo $OMP_NUM_THREADS $PYTHONUNBUFFERED"
    job = run("run", "-n", "1", "sh", "-c", script, environment=variables)
    assert job.output == "[0] 5 x\n"
    assert job.errors == ""


def test_freed_memory_is_kept_and_the_launcher_says_so() -> None:
    """If a worker frees a block of 64 MiB and then allocates another one, it gets the same memory
    again, so nearly no page is new. With the C library's own settings, every page would be new."""
    program = (
        "import ctypes, resource\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype = ctypes.c_void_p\n"
        "def touch():\n"
        "    block = ctypes.c_void_p(libc.malloc(64 << 20))\n"
        "    ctypes.memset(block, 1, 64 << 20)\n"
        "    libc.free(block)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "first = touch()\n"
        "print(touch() - first)\n"
    )
    new_pages = {}
    for name, given in (("kept", {}), ("own", {"GLIBC_TUNABLES": ""})):
        job = run("run", "-n", "1", sys.executable, "-c", program, environment=given)
        new_pages[name] = int(job.output.removeprefix("[0] "))
        assert ("keeps freed memory" in job.errors) == (name == "kept"), job.errors
    assert new_pages["kept"] < 1000 < new_pages["own"], new_pages


def test_standard_input_is_empty_and_few_descriptors_are_inherited() -> None:
    program = (
        "import os, sys; numbers = map(int, os.listdir('/proc/self/fd'));"
        "still_open = {n for n in numbers if os.path.exists(f'/proc/self/fd/{n}')};"
        "names = ('RENDEZVOUS', 'FLIGHT_RECORD');"
        "ours = {int(os.environ[f'FARANDOLE_{name}_DESCRIPTOR']) for name in names};"
        "print(sys.stdin.read() == '', still_open == {0, 1, 2} | ours)"
    )
    job = run("run", "-n", "3", sys.executable, "-c", program)
    assert sorted(job.output.splitlines()) == [f"[{rank}] True True" for rank in range(3)]


CALLER_WITH_A_DOOR = """
import socket, subprocess, sys
door, launchers_door = socket.socketpair(type=socket.SOCK_SEQPACKET)
number = launchers_door.fileno()
words = [sys.argv[1], "run", "-n", "2", "--door", str(number), *sys.argv[2:]]
process = subprocess.Popen(words, pass_fds=[3, 6, 7, 8, 9, number])
launchers_door.close()
for _ in range(2):
    slot, descriptors, *_ = socket.recv_fds(door, 9, 9)
    channel = socket.socket(fileno=descriptors[0])
    channel.sendall(b"for %d\\n" % int.from_bytes(slot, "little"))
    channel.shutdown(socket.SHUT_WR)
sys.exit(process.wait())
"""


def test_each_rank_gets_its_descriptors_from_the_caller(tmp_path: Path) -> None:
    """Test the flags that are meant only for programs that start jobs. test_jobs.py tests such
    programs."""
    paths = [tmp_path / name for name in ("report", "out0", "err0", "out1", "err1")]
    count = "for n in $(seq 0 30); do [ ! -e /proc/$$/fd/$n ] || echo open; done"
    # A rank that ignores SIGTERM has 10 s instead of 5 s to end.
    meeting = (
        f"touch {tmp_path}/$FARANDOLE_RANK; "
        f"until [ -e {tmp_path}/0 -a -e {tmp_path}/1 ]; do sleep 0.05; done"
    )
    copy = "cat <&$FARANDOLE_CHANNEL_DESCRIPTOR; echo err >&2"
    script = f'trap "" TERM; {meeting}; {copy}; {count}; exit 3'
    flags = "--report 3 --streams 6,7,8,9"
    open_descriptors = f"exec 3>{paths[0]} 6>{paths[1]} 7>{paths[2]} 8>{paths[3]} 9>{paths[4]}"
    caller = f"{open_descriptors}; '{sys.executable}' -c \"$1\" \"$0\" {flags} bash -c '{script}'"
    with CommandRun("-c", caller, command(), CALLER_WITH_A_DOOR, program="sh") as job:
        assert job.end() == 3, job.errors
        assert job.remaining_processes() == []
    assert job.output == ""
    for rank in (0, 1):
        # Besides the standard streams, each worker has three descriptors: rendezvous, flight
        # record, and channel.
        assert paths[1 + 2 * rank].read_text() == f"for {rank}\n" + "open\n" * 6
        assert paths[2 + 2 * rank].read_text() == "err\n"
    lines = paths[0].read_text().splitlines()
    assert sorted(re.sub(r"(started \d) \d+", r"\1", line) for line in lines) == [
        lines[-1],
        "ended 0 code 3",
        "ended 1 code 3",
        "started 0",
        "started 1",
    ]
    assert re.fullmatch(r"cause [01] \d+", lines[-1])


def test_a_list_with_too_few_descriptors_is_rejected() -> None:
    caller = '"$0" run -n 2 --streams 3,4,5 true 3</dev/null 4<&3 5<&3'
    with CommandRun("-c", caller, command(), program="sh") as job:
        assert job.end() == 2
    assert '--streams is "3,4,5"; 4 descriptors are needed, not 3' in job.errors


def test_a_door_of_another_kind_is_rejected() -> None:
    with CommandRun(
        "-c", '"$0" run -n 2 --door 3 true 3</dev/null', command(), program="sh"
    ) as job:
        assert job.end() == 2
    assert "farandole run: " in job.errors and "socket" in job.errors, job.errors


def test_words_after_the_program_belong_to_it() -> None:
    job = run(
        "run", "-n", "1", "sh", "-c", 'echo "$0" "$@"', "--help", "-n", "3", "--", "--version"
    )
    assert job.output == "[0] --help -n 3 -- --version\n"
    job = run("run", "-n", "1", "--", "sh", "-c", 'echo "$@"', "sh", "-c", "--", "x")
    assert job.output == "[0] -c -- x\n"


def box_lines(errors: str) -> list[str]:
    """Return the lines in the frame at the end of a failed job."""
    return [line[2:-2].rstrip() for line in errors.splitlines() if line.startswith("│")]


def test_the_first_failure_gives_the_code_and_the_last_lines() -> None:
    job = run_shell(3, '[ "$FARANDOLE_RANK" = 1 ] && exit 7; exec sleep 1000')
    assert job.process.returncode == 7
    title, empty_line, other_ranks = box_lines(job.errors)
    assert re.fullmatch(r"rank 1 \(pid \d+\) exited with code 7", title)
    assert empty_line == ""
    assert other_ranks == "the others: ranks 0, 2: ended with SIGTERM"
    assert job.errors.splitlines()[-1].startswith("╰─ exit code 7 ─")


# Rank 0 watches rank 1. So rank 0 learns of the end of rank 1 at the same time as the launcher, and
# then ends immediately, too.
RANK_0_FOLLOWS = """
import os, select, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # 10 s instead of 5 s
rank, folder = os.environ["FARANDOLE_RANK"], sys.argv[1]
if rank == "1":
    with open(folder + "/pid", "w") as pid:
        pid.write(str(os.getpid()))
    open(folder + "/watched").read()
    os._exit(5)
with open(folder + "/pid") as pid:
    watched = os.pidfd_open(int(pid.read()))
open(folder + "/watched", "w").close()
select.select([watched], [], [])
sys.exit("rank 1 has gone")
"""


def test_others_may_end_with_an_error_of_their_own(tmp_path: Path) -> None:
    for name in ("pid", "watched"):
        os.mkfifo(tmp_path / name)
    job = run("run", "-n", "2", sys.executable, "-c", RANK_0_FOLLOWS, str(tmp_path))
    assert job.process.returncode == 5
    assert "[0] rank 1 has gone\n" in job.errors
    assert box_lines(job.errors)[-1] == "the others: rank 0: exited with code 1"


def test_processes_that_workers_leave_may_write_their_last_lines() -> None:
    # As in `train > >(tee log)`, a process that has the worker's output open lives longer than the
    # worker. Here, this process ends only after the launcher has noticed the end of the worker.
    script = "echo first > >(trap '' TERM; cat; while [ -e /proc/$$ ]; do :; done; echo last)"
    job = run("run", "-n", "2", "bash", "-c", script)
    assert job.process.returncode == 0
    assert sorted(job.output.splitlines()) == ["[0] first", "[0] last", "[1] first", "[1] last"]


def test_processes_that_workers_leave_are_asked_to_end(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "ready")
    child_script = (
        f"trap 'echo asked; exit' TERM; {WAIT_SCRIPT.replace('ready;', f'ready; echo >{fifo};')}"
    )
    job = run_shell(1, f"({child_script}) & read line <{fifo}; exit 0")
    assert job.process.returncode == 0
    assert job.output == "[0] ready\n[0] asked\n"


def test_a_signal_is_named() -> None:
    job = run_shell(2, '[ "$FARANDOLE_RANK" = 1 ] && kill -9 $$; exec sleep 1000')
    assert job.process.returncode == 128 + 9
    assert re.search(r"rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)", job.errors)


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "ready")
    failing_script = f'[ "$FARANDOLE_RANK" = 1 ] && read line <{fifo} && exit 3; '
    job = run_shell(2, f'{failing_script}trap "" TERM; echo >{fifo}; {WAIT_SCRIPT}')
    assert job.process.returncode == 3
    assert "rank 0: ended with SIGKILL" in job.errors


NONE_JOINED = "farandole: no worker of this job called farandole's init(): unless the program"
RANK_1_NEVER_JOINED = (
    "farandole: rank 1 ended without calling farandole's init() and ran independently"
)


@pytest.mark.parametrize(
    ("joining", "notice"), [("-", NONE_JOINED), ("0", RANK_1_NEVER_JOINED), ("01", "")]
)
def test_ranks_that_never_joined_are_named(joining: str, notice: str) -> None:
    """A job whose workers never call init() can succeed. The launcher prints a message that names
    these ranks."""
    program = (
        "import contextlib, os, farandole\n"
        f"if os.environ['FARANDOLE_RANK'] in '{joining}':\n"
        "    with contextlib.suppress(farandole.FarandoleError):\n"
        "        farandole.init()\n"
    )
    job = run("run", "-n", "2", "-x", "OMP_NUM_THREADS=1", sys.executable, "-c", program)
    assert job.process.returncode == 0
    assert job.errors.startswith(notice)
    assert job.errors.count("init()") == (2 if notice else 0), job.errors


def test_an_early_success_does_not_end_the_job(tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    # This script waits until the process of rank 1 does not exist any more, because its parent, the
    # launcher, has reaped it.
    await_rank_1_script = f"tail -s 0.05 -f /dev/null --pid=$(cat {fifo})"
    script = (
        f'if [ "$FARANDOLE_RANK" = 1 ]; then echo $$ > {fifo}; exit 0; fi;'
        f"{await_rank_1_script}; echo still here"
    )
    job = run_shell(2, script)
    assert job.process.returncode == 0
    assert job.output == "[0] still here\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "-n", "2", "no-such-program"], 127, "command not found: `no-such-program`"),
        (["run", "-n", "2", "/etc/passwd"], 126, "not executable"),
        (["run", "-n", "2", "train.py"], 127, "python train.py"),
        (["run", "sh"], 2, "-n N"),
        (["run", "-n", "0", "sh"], 2, '-n is "0"'),
        (["run", "-n", "many", "sh"], 2, "many"),
        (["run", "-n", "2"], 2, "which program"),
        (["run", "-n", "2", "--nonsense", "sh"], 2, "--nonsense"),
        (["run", "-n", "2", "--start-timeout", "soon", "sh"], 2, '"soon"'),
        (["nonsense"], 2, "nonsense"),
        ([], 2, "farandole run"),
    ],
)
def test_wrong_command_lines_are_explained(arguments: list[str], code: int, words: str) -> None:
    job = run(*arguments)
    assert job.process.returncode == code
    assert words in job.errors
    assert job.output == ""


def test_help_and_version_texts() -> None:
    assert re.fullmatch(r"farandole \d+\.\d+\.\d+\n", run("--version").output)
    assert "run" in run("--help").output
    assert "/dev/null" in run("run", "--help").output
    assert "FARANDOLE_START_TIMEOUT" in run("knobs").output
    assert run("knobs", "--markdown").output.startswith("| Variable |")


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_signals_are_passed_on_once(name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    script = f"trap 'echo got {name}; exit 0' {name}; {WAIT_SCRIPT}"
    with CommandRun("run", "-n", "2", "sh", "-c", script) as job:
        job.read_until("ready", times=2)
        job.send(number)
        assert job.end() == 128 + number
        assert sorted(re.findall(rf"\[\d\] got {name}", job.output)) == [
            f"[0] got {name}",
            f"[1] got {name}",
        ]
        assert job.remaining_processes() == []
    assert f"the job has ended after SIG{name}" in job.errors


def test_a_second_signal_kills() -> None:
    with CommandRun("run", "-n", "2", "sh", "-c", f"trap '' INT; {WAIT_SCRIPT}") as job:
        job.read_until("ready", times=2)
        job.send(signal.SIGINT)
        # The second signal is SIGTERM, because a second SIGINT right after the first one would
        # count as the same Ctrl-C.
        job.send(signal.SIGTERM)
        assert job.end() in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert job.remaining_processes() == []
    assert "ended with SIGKILL" in job.errors


def test_workers_are_killed_after_the_grace_time() -> None:
    arguments = ("run", "-n", "1", "--grace-time", "1", "sh", "-c", f"trap '' TERM; {WAIT_SCRIPT}")
    with CommandRun(*arguments) as job:
        job.read_until("ready")
        job.send(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM
        assert job.remaining_processes() == []


def test_user_signals_reach_the_workers_and_the_job_goes_on() -> None:
    script = f"trap 'echo saved' USR1; trap 'exit 0' USR2; {WAIT_SCRIPT}"
    with CommandRun("run", "-n", "2", "sh", "-c", script) as job:
        job.read_until("ready", times=2)
        job.send(signal.SIGUSR1)
        job.read_until("saved", times=2)
        job.send(signal.SIGUSR2)
        assert job.end() == 0


def test_an_ignored_hangup_stays_ignored() -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = f"trap 'exit 0' USR1; {WAIT_SCRIPT}"
    with CommandRun("run", "-n", "1", "sh", "-c", script, before_exec=ignore_hangup) as job:
        job.read_until("ready")
        job.send(signal.SIGHUP)
        job.send(signal.SIGUSR1)
        assert job.end() == 0


def test_ignored_child_signals_do_no_harm() -> None:
    def ignore_child_signals() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with CommandRun(
        "run", "-n", "2", "sh", "-c", "exit 4", before_exec=ignore_child_signals
    ) as job:
        assert job.end() == 4


def test_closed_standard_descriptors_become_empty_ones() -> None:
    # If nothing replaced the closed descriptors, the launcher's own descriptors would get the
    # numbers 0 and 1.
    def close_input_and_output() -> None:
        os.closerange(0, 2)

    script = "readlink /proc/$PPID/fd/0 /proc/$PPID/fd/1 >&2"
    arguments = ("run", "-n", "1", "sh", "-c", script)
    with CommandRun(*arguments, before_exec=close_input_and_output) as job:
        assert job.end() == 0
    assert job.errors.count("[0] /dev/null\n") == 2


@pytest.mark.parametrize(
    ("descriptors", "words"), [(4, "signalfd"), (5, "signalfd"), (6, "epoll_create1"), (7, "epoll")]
)
def test_too_few_descriptors_are_explained(descriptors: int, words: str) -> None:
    def limit_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with CommandRun("run", "-n", "1", "sh", "-c", "exit 0", before_exec=limit_descriptors) as job:
        assert job.end() == 1
        assert job.remaining_processes() == []
    assert words in job.errors
    assert "ulimit -n" in job.errors


def test_a_job_can_be_stopped_and_continued() -> None:
    script = f"trap 'exit 0' USR1; {WAIT_SCRIPT}"
    with CommandRun("run", "-n", "1", "sh", "-c", script) as job:
        job.read_until("ready")
        job.send(signal.SIGTSTP)
        _, status = os.waitpid(job.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        job.send(signal.SIGCONT)
        job.send(signal.SIGUSR1)
        assert job.end() == 0


def test_a_closed_output_ends_the_job() -> None:
    with CommandRun("run", "-n", "2", "sh", "-c", "while echo x; do :; done") as job:
        assert job.process.stdout is not None
        job.read_until("x")
        job.process.stdout.close()
        job.process.wait()
        assert job.process.returncode == 128 + signal.SIGPIPE
        assert job.remaining_processes() == []


def test_a_closed_output_leaves_the_workers_their_grace_time(tmp_path: Path) -> None:
    saved_file = tmp_path / "saved"
    # The shell goes on when its output is closed. After SIGTERM it writes another line, which wakes
    # the launcher within the grace time.
    script = (
        f"trap '' PIPE; trap 'sleep 1; echo saving; sleep 1; echo yes >{saved_file}; exit 0' TERM; "
        "while :; do echo x; sleep 0.05; done"
    )
    with CommandRun("run", "-n", "1", "sh", "-c", script) as job:
        assert job.process.stdout is not None
        job.read_until("x")
        job.process.stdout.close()
        job.process.wait()
        assert job.process.returncode == 128 + signal.SIGPIPE
        assert saved_file.read_text() == "yes\n"
        assert job.remaining_processes() == []


def test_a_slow_reader_does_not_stop_the_launcher() -> None:
    # The script writes more than fits into all buffers, and while the script writes, the test does
    # not read standard output.
    script = "head -c 4000000 /dev/zero | tr '\\0' '\\n'; echo never"
    with CommandRun("run", "-n", "1", "sh", "-c", script) as job:
        assert job.process.stderr is not None
        job.errors += job.process.stderr.readline()
        job.send(signal.SIGTERM)
        while "SIGTERM passed on" not in job.errors:
            job.errors += job.process.stderr.readline()
        assert job.end() == 128 + signal.SIGTERM
        assert job.remaining_processes() == []


def test_a_slow_reader_gets_everything() -> None:
    # The launcher writes its closing lines when all processes have ended. Only after these lines
    # does the test read the output.
    script = "sleep 1000 & setsid sleep 1001 & head -c 150000 /dev/zero | tr '\\0' '\\n'; exit 3"
    with CommandRun("run", "-n", "1", "sh", "-c", script) as job:
        assert job.process.stderr is not None
        while "exit code 3" not in job.errors:
            job.errors += job.process.stderr.readline()
        assert job.end() == 3
    assert job.output.count("[0] \n") == 150_000
