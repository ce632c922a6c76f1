"""The options of `farandole run` for the output and the environment of the workers."""

from __future__ import annotations

import os
import re
import resource
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from launched import TIMEOUT_SECONDS, CommandRun, command, run

# The launcher prints a notice if it chooses the number of threads itself.
WITHOUT_NOTICE = ("-x", "OMP_NUM_THREADS=1")
# The launcher prints this notice, because these scripts never call init().
NEVER_JOINED = re.compile(
    r"farandole: no worker of this job called farandole's init\(\): unless the program "
    r"communicates through another library, such as torch.distributed with gloo, every worker "
    r"ran alone; to train together, the program must call hvd.init\(\)\n"
)


def run_script(
    *words: str, workers: int = 2, environment: dict[str, str] | None = None
) -> CommandRun:
    """Run a job; the last word is a shell script."""
    *options, script = words
    job = ("run", "-n", str(workers), *WITHOUT_NOTICE, *options, "sh", "-c", script)
    return run(*job, environment=environment)


def test_variables_are_set_and_passed_on() -> None:
    options = ("-x", "GIVEN=a=b c", "-x", "HERE", "-x", "EMPTY=", "-x", "GIVEN2=first")
    script = 'echo "$GIVEN|$HERE|${EMPTY-unset}|$GIVEN2|$OMP_NUM_THREADS"'
    job = run_script(*options, "-x", "GIVEN2=last", script, environment={"HERE": "from here"})
    assert sorted(job.output.splitlines()) == [
        "[0] a=b c|from here||last|1",
        "[1] a=b c|from here||last|1",
    ]
    assert NEVER_JOINED.fullmatch(job.errors)


def test_a_flag_wins_over_a_variable() -> None:
    options = ("-x", "FARANDOLE_LOG_LEVEL=info", "--log-level", "debug")
    assert run_script(*options, "echo $FARANDOLE_LOG_LEVEL", workers=1).output == "[0] debug\n"


def test_the_later_of_two_flags_wins() -> None:
    job = run_script("--log-level", "info", "--log-level", "debug", "echo $FARANDOLE_LOG_LEVEL")
    assert "[0] debug\n" in job.output


def test_the_prefix_has_the_fields_that_are_asked_for() -> None:
    pattern = "{{{rank}/{local_rank} {host} {pid} {stream}}} "
    job = run_script("--prefix", pattern, "echo $$; echo $$ >&2", workers=1)
    host = re.escape(socket.gethostname())
    output = re.fullmatch(rf"\{{0/0 {host} (\d+) stdout\}} (\d+)\n", job.output)
    errors = re.fullmatch(rf"\{{0/0 {host} (\d+) stderr\}} (\d+)\n", job.errors)
    assert output is not None and output[1] == output[2]
    assert errors is not None and errors[1] == output[1]


def test_the_prefix_shows_the_time() -> None:
    job = run_script("--prefix", "{time}|", "echo", workers=1, environment={"TZ": "UTC+5"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\|\n", job.output)


def test_an_empty_prefix_prints_plain_lines() -> None:
    assert run_script("--prefix", "", "echo hello", workers=1).output == "hello\n"


def test_only_some_ranks_are_shown() -> None:
    job = run_script("--tag-rank", "0,2-3", "echo out; echo err >&2", workers=5)
    assert sorted(job.output.splitlines()) == ["[0] out", "[2] out", "[3] out"]
    errors = sorted(job.errors.splitlines(keepends=True))
    assert errors[:-1] == ["[0] err\n", "[2] err\n", "[3] err\n"]
    assert NEVER_JOINED.fullmatch(errors[-1])


def test_failures_of_hidden_ranks_are_reported(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "rank 0 has written")
    script = (
        f"echo out; if [ $FARANDOLE_RANK = 0 ]; then echo >'{fifo}'; else "
        f"read line <'{fifo}'; exit 7; fi"
    )
    folder = tmp_path / "output"
    job = run_script("--tag-rank", "0", "--output-dir", str(folder), script)
    assert job.process.returncode == 7
    assert job.output == "[0] out\n"
    assert re.search(r"^│ rank 1 \(pid \d+\) exited with code 7", job.errors, re.MULTILINE)
    assert (folder / "rank.1" / "stdout").read_text() == "out\n"


def test_each_rank_has_files_with_its_bytes(tmp_path: Path) -> None:
    script = (
        r"printf 'rank %s\r50%%\rno end' $FARANDOLE_RANK; printf 'e\001\000' >&2;"
        "head -c 200000 /dev/zero | tr '\\0' x"
    )
    folder = tmp_path / "made" / "on demand"
    job = run_script("--output-dir", str(folder), script, workers=11)
    assert job.process.returncode == 0
    assert sorted(os.listdir(folder)) == [f"rank.{rank:02}" for rank in range(11)]
    for rank in range(11):
        files = folder / f"rank.{rank:02}"
        expected = b"rank %d\r50%%\rno end" % rank + b"x" * 200_000
        assert (files / "stdout").read_bytes() == expected
        assert (files / "stderr").read_bytes() == b"e\x01\0"
    assert "[10] " in job.output


def test_files_of_an_earlier_job_are_overwritten(tmp_path: Path) -> None:
    for text in ("much longer than the second", "second"):
        run_script("--output-dir", str(tmp_path), f"echo {text}", workers=1)
    assert (tmp_path / "rank.0" / "stdout").read_text() == "second\n"


def test_a_removed_file_is_reported_once(tmp_path: Path) -> None:
    script = f"rm -r {shlex.quote(str(tmp_path))}/rank.0; echo a; sleep 0.1; echo b; echo c >&2"
    job = run_script("--output-dir", str(tmp_path), script, workers=1)
    assert job.process.returncode == 0
    assert job.output == "[0] a\n[0] b\n"
    notices = [line for line in job.errors.splitlines() if line.startswith("farandole: ")]
    assert len(notices) == 1
    assert "any more: somebody has removed the file; it ends here" in notices[0]


def test_too_few_descriptors_for_the_files_are_explained(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    arguments = ("run", "-n", "20", *WITHOUT_NOTICE, "--output-dir", str(tmp_path), "true")
    with CommandRun(*arguments, before_exec=limit) as job:
        assert job.end() == 1
    assert "/stdout`: Too many open files (look at `ulimit -n`); nothing was started" in (
        job.errors.replace("/stderr`", "/stdout`")
    )


FILE_BYTES_MAX = 4 << 20  # enough for the memory that a worker shares with the launcher


def test_a_file_size_limit_does_not_end_the_job(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))

    script = f"yes {'x' * 1000} | head -c {FILE_BYTES_MAX + 1_000_000}; echo; echo end"
    arguments = (
        "run",
        "-n",
        "1",
        *WITHOUT_NOTICE,
        "--output-dir",
        str(tmp_path),
        "sh",
        "-c",
        script,
    )
    with CommandRun(*arguments, before_exec=limit) as job:
        assert job.end() == 0
    assert job.output.endswith("[0] end\n")
    assert job.output.count("x") > FILE_BYTES_MAX
    assert job.errors.count("File too large") == 1
    assert (tmp_path / "rank.0" / "stdout").stat().st_size == FILE_BYTES_MAX


def run_in_small_folder(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Mount a disk of 64 kB at the folder, run a command, and then print to stderr how full the
    disk is.

    Only the command sees the disk, because it has a mount namespace of its own.
    """
    quoted_folder = shlex.quote(str(folder))
    script = f"mount -t tmpfs -o size=64k none {quoted_folder} && {shlex.join(words)}; code=$?;"
    script += f"du -sk {quoted_folder} >&2; exit $code"
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_a_full_disk_does_not_end_the_job(tmp_path: Path) -> None:
    trial = run_in_small_folder(tmp_path, ["true"])
    if trial.returncode != 0:
        pytest.skip(f"no small disk can be made here: {trial.stderr}")
    script = "yes | head -n 100000; echo end"
    words = [
        command(),
        "run",
        "-n",
        "3",
        *WITHOUT_NOTICE,
        "--output-dir",
        str(tmp_path),
        "sh",
        "-c",
        script,
    ]
    job = run_in_small_folder(tmp_path, words)
    assert job.returncode == 0
    assert job.stdout.count("] y\n") == 3 * 100_000
    assert job.stdout.count("] end\n") == 3
    notices = [line for line in job.stderr.splitlines() if line.startswith("farandole: ")]
    assert len(notices) == 2
    assert NEVER_JOINED.fullmatch(notices[1] + "\n")
    assert re.fullmatch(
        rf"farandole: cannot write `{tmp_path}/rank\.[012]/stdout` any more: No space left on "
        rf"device; it ends here, and so may others in `{tmp_path}`; the job goes on",
        notices[0],
    )
    assert f"64\t{tmp_path}" in job.stderr


NO_SPACE = "could not be written (No space left on device)"


def test_lost_output_is_a_failure() -> None:
    words = (command(), "run", "-n", "1", *WITHOUT_NOTICE, "sh", "-c", "echo hello")
    with Path("/dev/full").open("w") as full:
        job = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert job.returncode == 1
    assert job.stderr == f"farandole: the standard output {NO_SPACE}; lines are missing there\n"


def test_lost_output_does_not_hide_the_first_failure() -> None:
    words = (command(), "run", "-n", "1", *WITHOUT_NOTICE, "sh", "-c", "echo hello; exit 7")
    with Path("/dev/full").open("w") as full:
        job = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert job.returncode == 7
    assert job.stderr.endswith("; lines are missing there\n")


@pytest.mark.parametrize("stream", ["knobs", "doctor"])
def test_output_that_cannot_be_printed_is_a_failure(stream: str) -> None:
    with Path("/dev/full").open("w") as full:
        job = subprocess.run(
            [command(), stream], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert job.returncode == 1
    assert job.stderr == f"farandole: the standard output {NO_SPACE}\n"
