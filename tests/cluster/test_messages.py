"""The whole text of every message of the command about a wrong command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launched import run

RUN_ERROR = "farandole run: {}\nSee `farandole run --help`.\n"
COMMAND_ERROR = "farandole: {}\nSee `farandole --help`.\n"
KNOWN_COMMANDS = (
    "; the commands are run, status, bench, doctor, secret, knobs and completion; to start "
    "a program, use `farandole run -n 2 python train.py`"
)
NAME_RULE = "; a name has letters, digits and _, and does not begin with a digit"
FIELDS = "{rank}, {local_rank}, {host}, {pid}, {stream}, {time}"

# The words after `farandole run`, and the message about them.
WRONG_RUNS = {
    "": "which program? For example `farandole run -n 2 python train.py`",
    "-n 2": "which program? For example `farandole run -n 2 python train.py`",
    "true": "how many workers? Say `-n N`, for example `farandole run -n 2 …`",
    "-n": "--workers needs a value",
    "-n many true": '-n is "many"; it must be a whole number from 1 to 65536',
    "-n 0 true": '-n is "0"; it must be a whole number from 1 to 65536',
    "-n 65537 true": '-n is "65537"; it must be a whole number from 1 to 65536',
    "-n 2x true": '-n is "2x"; it must be a whole number from 1 to 65536',
    "-n 2 --nonsense true": "unknown option --nonsense",
    "-n 2 --grace-time soon true": (
        '--grace-time is "soon"; it must be a whole number from 0 to 86400'
    ),
    "-n 2 --grace-time -1 true": '--grace-time is "-1"; it must be a whole number from 0 to 86400',
    "-n 2 --start-timeout soon true": (
        '--start-timeout is "soon"; it must be a whole number from 1 to 604800'
    ),
    "-n 2 --log-level loud true": (
        '--log-level is "loud"; it must be one of trace|debug|info|warning|error|fatal'
    ),
    "-n 2 --caller 2 true": '--caller is "2"; it must be a whole number from 3 to 2147483647',
    "-n 2 --report 99 true": '--report is "99"; 99 is not an open descriptor',
    "-n 1 --streams ,3 true": '--streams is ""; it must be a whole number from 3 to 2147483647',
    "-n 2 --streams 99 true": '--streams is "99"; 99 is not an open descriptor',
    "-n 2 --log-hide-time=maybe true": "--log-hide-time = maybe: this flag takes no value",
    "-n 2 -x": "-x needs a value",
    "-n 2 -x NOT_SET_HERE true": (
        "-x NOT_SET_HERE: NOT_SET_HERE is not set here; set it, or write `-x NOT_SET_HERE=VALUE`"
    ),
    "-n 2 -x 1ST=2 true": f'-x "1ST=2": "1ST" is not the name of a variable{NAME_RULE}',
    "-n 2 -x =2 true": f'-x "=2": "" is not the name of a variable{NAME_RULE}',
    "-n 2 -x A-B true": f'-x "A-B": "A-B" is not the name of a variable{NAME_RULE}',
    "-n 2 -x FARANDOLE_RANK=1 true": (
        '-x "FARANDOLE_RANK=1": the launcher sets FARANDOLE_RANK in every worker; leave this -x out'
    ),
    "-n 2 -x HOROVOD_RANK=5 true": (
        '-x "HOROVOD_RANK=5": the launcher sets HOROVOD_RANK in every worker; leave this -x out'
    ),
    "-n 2 -x LOCAL_RANK=1 true": (
        '-x "LOCAL_RANK=1": the launcher sets LOCAL_RANK in every worker; leave this -x out'
    ),
    "-n 2 -x MASTER_PORT=4711 true": (
        '-x "MASTER_PORT=4711": the launcher sets MASTER_PORT in every worker; leave this -x out'
    ),
    "-n 2 -x FARANDOLE_SECRET=file true": (
        '-x "FARANDOLE_SECRET=file": the workers do not read FARANDOLE_SECRET, because the '
        "launcher gives them the secret of the job; leave this -x out (the launchers of a job with "
        "--join take the secret from --secret)"
    ),
    "-n 2 --tf-config -x TF_CONFIG={} true": (
        '-x "TF_CONFIG={}": --tf-config sets TF_CONFIG in every worker; leave one of them out'
    ),
    "-n 2 --jax -x JAX_PROCESS_ID=0 true": (
        '-x "JAX_PROCESS_ID=0": --jax sets JAX_PROCESS_ID in every worker; leave one of them out'
    ),
    "-H nohost:2 --jax -x OMPI_COMM_WORLD_SIZE=3 true": (
        '-x "OMPI_COMM_WORLD_SIZE=3": --jax sets OMPI_COMM_WORLD_SIZE in every worker; leave one '
        "of them out"
    ),
    "-n 2 --jax=gpu true": "--jax: this flag takes no value",
    "-n 2 --tf-config=false true": "--tf-config: this flag takes no value",
    "-n 2 --prefix \u202e{rank} true": (
        r'--prefix "\u202e{rank}": it may not contain line ends, other control characters, '
        "characters that change the writing direction, or invalid UTF-8"
    ),
    "-n 2 -x FARANDOLE_LOG_LEVEL=loud true": (
        'FARANDOLE_LOG_LEVEL is "loud"; it must be one of trace|debug|info|warning|error|fatal. '
        "Correct it or unset it."
    ),
    "-n 2 --prefix [{rnk}] true": (
        f'--prefix "[{{rnk}}]": there is no field {{rnk}}; the fields are {FIELDS}'
    ),
    "-n 2 --prefix {rank true": (
        '--prefix "{rank": a single `{` stands alone; write a field as {rank}, and the character '
        "`{` itself as {{"
    ),
    "-n 2 --prefix rank} true": (
        '--prefix "rank}": a single `}` stands alone; write a field as {rank}, and the character '
        "`}` itself as }}"
    ),
    "-n 2 --tag-rank 2 true": (
        '--tag-rank "2": rank 2 is not in this job of 2 workers; its last rank is 1'
    ),
    "-n 1 --tag-rank 0,0-1 true": (
        '--tag-rank "0,0-1": rank 1 is not in this job of 1 worker; its last rank is 0'
    ),
    "-n 2 --tag-rank 0,x true": (
        '--tag-rank "0,x": "x" is neither a rank such as 3 nor a range such as 2-3'
    ),
    "-n 2 --tag-rank 1-0 true": (
        '--tag-rank "1-0": "1-0" is neither a rank such as 3 nor a range such as 2-3'
    ),
    "-n 2 --join a:1 --nodes 2 --node 0 --secret s --ports 20000 true": (
        "FARANDOLE_PORTS (--ports) has 1 of the 2 ports that the workers of this host need; give a "
        "range such as 20000-20001, or a larger one if the program makes groups of its own"
    ),
    "-n 2 --join a:1 --nodes 2 --node 0 --secret s --ports 2-1 true": (
        'FARANDOLE_PORTS is "2-1"; it must be a port from 1 to 65535, or a range such as '
        "20000-20099"
    ),
    **{
        f"{flag} true": (
            f'FARANDOLE_PORTS is "{value}"; it must be a port from 1 to 65535, or a range such as '
            "20000-20099"
        )
        for flag, value in {
            "-n 1 --ports abc": "abc",
            "-n 1 --ports 5-3": "5-3",
            "-n 1 -x FARANDOLE_PORTS=70000": "70000",
            "-H nohost:2 --ports abc": "abc",
        }.items()
    },
    "-n 2 --tag-rank 0, true": (
        '--tag-rank "0,": "" is neither a rank such as 3 nor a range such as 2-3'
    ),
}


def test_a_variable_for_tests_may_be_set() -> None:
    script = "echo $FARANDOLE_FAILPOINT"
    job = run("run", "-n", "1", "-x", "FARANDOLE_FAILPOINT=rank.asked:kill:1", "sh", "-c", script)
    assert job.output == "[0] rank.asked:kill:1\n", job.errors


@pytest.mark.parametrize("words", WRONG_RUNS)
def test_a_wrong_run_is_explained(words: str) -> None:
    job = run("run", *words.split())
    assert (job.errors, job.output) == (RUN_ERROR.format(WRONG_RUNS[words]), "")
    assert job.process.returncode == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--tag-rank", '--tag-rank "": "" is neither a rank such as 3 nor a range such as 2-3'),
        ("--output-dir", '--output-dir "": which folder? For example `--output-dir log`'),
        ("--start-timeout", '--start-timeout is ""; it must be a whole number from 1 to 604800'),
    ],
)
def test_an_empty_value_is_explained(flag: str, message: str) -> None:
    job = run("run", "-n", "2", flag, "", "true")
    assert (job.errors, job.process.returncode) == (RUN_ERROR.format(message), 2)


def test_a_line_end_in_the_prefix_is_rejected() -> None:
    job = run("run", "-n", "2", "--prefix", "a\nb", "true")
    message = (
        r'--prefix "a\x0ab": it may not contain line ends, other control characters, '
        "characters that change the writing direction, or invalid UTF-8"
    )
    assert (job.errors, job.process.returncode) == (RUN_ERROR.format(message), 2)


# Flags of horovodrun, with the hint for each.
HOROVODRUN_FLAGS = {
    "-np": "use `-n N`",
    "--num-proc=2": "use `-n N`",
    "-hostfile": "use `--hostfile FILE`",
    "-cb": "use `farandole doctor`",
    "--verbose": "use `--log-level debug`",
    "--gloo": (
        "leave it out: the workers always use the same transport, which needs neither MPI nor Gloo"
    ),
    "--mpi-args": (
        "leave it out: the workers always use the same transport, which needs neither MPI nor Gloo"
    ),
    "--disable-cache": "leave it out: no information about hosts is cached",
    "--cache-capacity": "leave it out: plans of repeated calls need no setting",
    "--network-interface": "use `--network-interfaces NAMES`",
    "--output-filename": "use `--output-dir DIR`",
    "--config-file": (
        "give the settings as flags or FARANDOLE_* variables; `farandole knobs` lists them"
    ),
    "--fusion-threshold-mb": "use `--bucket-bytes N`, in bytes",
    "--cycle-time-ms": (
        "leave it out: there are no cycles; a call runs as soon as all ranks have made it"
    ),
    "--torus-allreduce": "leave it out: the algorithm is chosen automatically",
    "--autotune": "leave it out: settings are not tuned during a job",
    "--min-np": "use `--min-workers N`",
    "--blacklist-cooldown-range": "use `--cooldown-range LOW,HIGH`",
    "--max-np": (
        "use `--max-workers N` together with `--host-discovery-script COMMAND`, or leave it out"
    ),
    "--timeline-filename": "use `--timeline FILE`",
    "--no-timeline-mark-cycles": "leave it out: cycles are not marked unless asked for",
    "--no-stall-check": "use `--stall-warning 0`",
    "--stall-check": "leave it out: it is always on",
    "--stall-check-warning-time-seconds": "use `--stall-warning S`",
    "--stall-check-shutdown-time-seconds": "use `--stall-limit S`",
    "--gloo-timeout-seconds": (
        "leave it out: a lost worker is noticed at once; `--start-timeout S` limits the start"
    ),
    "--num-nccl-streams": "leave it out: tensors on GPUs go through host memory",
    "--binding-args": "use `--bind-to core`, `--bind-to socket` or `--bind-to none`",
    "--thread-affinity": "leave it out; to bind workers to cores, use `--bind-to core`",
    "--log-with-timestamp": (
        "leave it out: log lines have the time unless --log-hide-time is given"
    ),
    "--log-hide-timestamp": "use `--log-hide-time`",
    "-prefix-timestamp": 'use `--prefix "[{rank} {time}] "`',
    "-v": "use `farandole --version`",
}


@pytest.mark.parametrize("flag", HOROVODRUN_FLAGS)
def test_flags_of_horovodrun_get_a_hint(flag: str) -> None:
    message = RUN_ERROR.format(f"{flag} is a flag of horovodrun; here, {HOROVODRUN_FLAGS[flag]}")
    for words in ([flag, "2", "true"], ["-n", "2", "--prefix", "{rank}", flag, "true"]):
        job = run("run", *words)
        assert (job.errors, job.process.returncode) == (message, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-H", "hen:0"], '"hen:0"'),
        (["-H", "-oProxyCommand=x:2"], '"-oProxyCommand=x:2"'),
        (["-n", "3", "-H", "hen:2"], "-n is 3, but the hosts have only 2 slots"),
        (["-H", "hen:2", "--hostfile", "hosts"], "give -H or --hostfile, not both"),
        (["--hostfile", "/nowhere"], '--hostfile: the file "/nowhere" cannot be read'),
        (["--hostfile", "/"], '--hostfile: the file "/" cannot be read'),
        (["-H", "hen:2", "--node", "0"], "leave --join, --nodes, --node and --secret out"),
        (["-H", "hen:2", "--ssh-port", "0"], '--ssh-port is "0"'),
        (["-n", "2", "--ssh-port", "22"], "a flag for ssh was given, but no hosts"),
        (["-H", "hen:2", "--grace-time", "x"], '--grace-time is "x"'),
        (["-H", "hen:2", "--tag-rank", "2"], '--tag-rank "2"'),
        (["-H", "hen:2", "-x", "1=2"], "is not the name of a variable"),
        (["-H", "hen:2", "-x", "NOT_SET_HERE"], "is not set here"),
    ],
)
def test_wrong_flags_for_hosts_are_explained(words: list[str], message: str) -> None:
    job = run("run", *words, "true")
    assert job.process.returncode == 2
    assert message in job.errors
    assert job.errors.endswith("See `farandole run --help`.\n")


@pytest.mark.parametrize(
    ("words", "host_list"),
    [
        (["-H", "hen:2,owl:3,[fd00::1]:4"], "hen 2\nowl 3\nfd00::1 4\n"),
        (["-H", "alice@hen:2,owl:3", "-n", "3"], "hen 2\nowl 1\n"),
        (["-H", "localhost:2"], "localhost 2\n"),
    ],
)
def test_the_hosts_of_a_job_are_listed(words: list[str], host_list: str) -> None:
    job = run("run", "--list-hosts", *words, "true")
    assert (job.process.returncode, job.output, job.errors) == (0, host_list, "")


def test_words_of_the_program_are_not_flags_of_horovodrun() -> None:
    job = run("run", "-n", "1", "--prefix", "-np ", "echo", "-np", "--verbose")
    assert job.output == "-np -np --verbose\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nonsense", f"there is no command `nonsense`{KNOWN_COMMANDS}"),
        ("--nonsense", f"there is no command `--nonsense`{KNOWN_COMMANDS}"),
        ("-np 2 python train.py", f"there is no command `-np`{KNOWN_COMMANDS}"),
        ("-- true", f"there is no command `--`{KNOWN_COMMANDS}"),
        ("knobs all", "The following argument was not expected: all"),
        ("doctor --xml", "The following argument was not expected: --xml"),
    ],
)
def test_a_wrong_command_is_explained(words: str, message: str) -> None:
    job = run(*words.split())
    assert (job.errors, job.output) == (COMMAND_ERROR.format(message), "")
    assert job.process.returncode == 2


def make_script(folder: Path, name: str, text: str, mode: int = 0o755) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_programs_that_cannot_be_started_are_explained(tmp_path: Path) -> None:
    text = "print(1)\n"
    not_executable = make_script(tmp_path, "locked", text, 0o644)
    no_first_line = make_script(tmp_path, "plain", text)
    python = make_script(tmp_path, "train.py", text)
    missing_interpreter = make_script(tmp_path, "lost", "#!/no/such/interpreter -u\n")
    broken_binary = make_script(tmp_path, "broken", "\x7fELF\0\0\0")
    hint = f"; to run a Python script, use `farandole run -n N python {python} …`"
    first_line = (
        "is a text file whose first line does not name its interpreter, such as "
        "`#!/usr/bin/env python3`"
    )
    for program, code, message in [
        (str(tmp_path), 126, f"`{tmp_path}` is a folder, not a program"),
        (not_executable, 126, f"`{not_executable}` is not executable"),
        (no_first_line, 126, f"`{no_first_line}` {first_line}"),
        (python, 126, f"`{python}` {first_line}{hint}"),
        (
            missing_interpreter,
            126,
            f"`{missing_interpreter}` needs the interpreter `/no/such/interpreter`, which does not "
            "exist",
        ),
        (broken_binary, 126, f"cannot execute `{broken_binary}`: Exec format error"),
        ("no-such-program", 127, "command not found: `no-such-program`"),
        (
            "train.py",
            127,
            "command not found: `train.py`; to run a Python script, use "
            "`farandole run -n N python train.py …`",
        ),
    ]:
        job = run("run", "-n", "2", program, environment={"OMP_NUM_THREADS": "1"})
        assert (job.errors, job.process.returncode) == (f"farandole: {message}\n", code)


def test_a_script_with_a_first_line_runs(tmp_path: Path) -> None:
    path = make_script(tmp_path, "fine", "#! /bin/sh -e\necho fine\n")
    assert run("run", "-n", "1", path).output == "[0] fine\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; see the next test")
def test_an_output_folder_without_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    job = run("run", "-n", "2", "--output-dir", str(tmp_path), "true")
    assert f"cannot make the folder `{tmp_path}/rank.0`: Permission denied" in job.errors


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = make_script(tmp_path, "file", "")
    job = run("run", "-n", "2", "--output-dir", file, "sh", "-c", f"echo ran >> {file}")
    assert job.process.returncode == 1
    assert job.errors == (
        f"farandole: --output-dir: cannot make the folder `{file}/rank.0`: Not a directory; "
        "nothing was started\n"
    )
    assert Path(file).read_text() == ""
