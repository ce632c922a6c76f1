"""The report of `farandole doctor` agrees with /proc, even if the machine lacks something."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import pty
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from launched import TIMEOUT_SECONDS, CommandRun, command, command_for_all_users, run

KEYS = ["name", "state", "found", "to_do", "essential"]
STATES = {"works", "limited", "does not work", "not installed"}
KERNEL = [
    "kernel",
    "process handles",
    "process tree",
    "events",
    "shared memory",
    "wake-ups",
    "descriptor passing",
]
FRAMEWORKS = ["torch", "tensorflow", "keras", "jax", "mxnet", "pyspark", "ray"]
CHECK_NAMES = [
    *KERNEL,
    *("worker terminals", "memory of others"),
    *(
        "cores",
        "binding",
        "memory",
        "/dev/shm",
        "huge pages",
        "freed memory",
        "open files",
        "processes",
        "locked memory",
    ),
    *("address space", "file size", "shared heap", "sealing"),
    *("python3", "farandole for Python", *FRAMEWORKS, "py-spy", "CUDA driver", "NCCL"),
]

NO_ANSWER = "no answer within 10 s"
Rows = dict[str, dict[str, str]]


def rows_of(text: str) -> Rows:
    rows = json.loads(text)
    assert [row["name"] for row in rows] == CHECK_NAMES
    for row in rows:
        assert list(row) == KEYS
        assert row["state"] in STATES
        assert row["found"] != ""
    return {row["name"]: row for row in rows}


def examine(hanging: Collection[str] = (), **options: Any) -> tuple[int, Rows]:
    """Run the command; return its exit code and its rows. The checks in `hanging` need not answer
    in time. On a busy machine, another check may exceed its time limit, too. Then run the command
    again."""
    for _ in range(5):
        with CommandRun("doctor", "--json", **options) as job:
            code = job.end()
            assert job.remaining_processes() == []
        assert job.errors == ""
        rows = rows_of(job.output)
        if not {name for name, row in rows.items() if row["found"] == NO_ANSWER} - {*hanging}:
            break
    return code, rows


def run_doctor(
    environment: dict[str, str] | None = None,
    program: str | None = None,
    hanging: Collection[str] = (),
) -> Rows:
    code, rows = examine(hanging, environment=environment, program=program)
    assert code == 0
    return rows


def command_without_python(folder: Path) -> str:
    """Copy the command to a folder. As there is no Python beside the copy, it examines the Python
    in PATH."""
    command_folder = folder / "alone"
    command_folder.mkdir()
    return str(shutil.copy2(command(), command_folder))


def examine_with(before_exec: Callable[[], object], program: str | None = None) -> tuple[int, Rows]:
    return examine(before_exec=before_exec, program=program)


def test_the_kernel_has_what_jobs_need() -> None:
    rows = run_doctor()
    assert {rows[name]["state"] for name in KERNEL} == {"works"}
    assert os.uname().release in rows["kernel"]["found"]


def huge_pages_work() -> bool:
    """Return whether the engine can get huge pages. It requests them by MADV_COLLAPSE, which needs
    Linux 6.1."""
    mode = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    version = tuple(int(number) for number in os.uname().release.split(".")[:2])
    return version >= (6, 1) and mode.exists() and "[deny]" not in mode.read_text()


def test_facts_agree_with_the_system() -> None:
    rows = run_doctor()
    machine = os.sysconf("SC_NPROCESSORS_ONLN")
    usable = re.match(rf"(\d+) of {machine} usable", rows["cores"]["found"])
    assert usable is not None
    assert 1 <= int(usable[1]) <= len(os.sched_getaffinity(0))
    total = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert total is not None
    assert rows["memory"]["found"].startswith(f"{int(total[1]) / 2**20:.1f} GiB in the machine")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"soft limit {soft}, hard limit {hard}" in rows["open files"]["found"]
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if mode.exists():
        words = re.search(r"\[(\w+)\]", mode.read_text())
        assert words is not None
        assert f"transparent: {words[1]};" in rows["huge pages"]["found"]
    assert rows["huge pages"]["state"] == ("works" if huge_pages_work() else "limited")


def test_the_table_has_all_rows() -> None:
    job = run("doctor")
    assert job.process.returncode == 0
    lines = job.output.splitlines()
    assert [line[:20].rstrip() for line in lines[:-2] if not line.startswith(" ")] == CHECK_NAMES
    assert lines[-1] == "Jobs can run here."
    assert "\x1b" not in job.output


def test_the_affinity_is_a_limit() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core only")
    _, rows = examine_with(lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    assert rows["cores"]["state"] == "limited"
    assert rows["cores"]["found"].startswith("1 of ")


@pytest.mark.parametrize(("limit", "code"), [(34, 0), (20, 1)])
def test_a_low_descriptor_limit_is_reported(limit: int, code: int) -> None:
    def limit_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    exit_code, rows = examine_with(limit_descriptors)
    assert exit_code == code
    row = rows["open files"]
    assert row["state"] == ("does not work" if code else "limited")
    assert f"enough for about {1 - code} worker" in row["found"]
    assert "ulimit -n" in row["to_do"]
    assert {rows[name]["state"] for name in KERNEL} == {"works"}


def test_a_broken_machine_says_that_jobs_cannot_run() -> None:
    def limit_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))

    with CommandRun("doctor", before_exec=limit_descriptors) as job:
        assert job.end() == 1
    assert job.output.splitlines()[-1] == "Jobs cannot run here, because of: open files"


@contextmanager
def control_group(controller: str, limit: str, value: int) -> Iterator[Path]:
    """Make a control group below the one of this process, and set one limit."""
    own_group = re.search(rf":{controller}:(.*)", Path("/proc/self/cgroup").read_text())
    parent = Path(f"/sys/fs/cgroup/{controller}{own_group[1] if own_group else ''}")
    group = parent / f"farandole-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (group / limit).write_text(str(value))
        yield group
    finally:
        deadline = time.monotonic() + TIMEOUT_SECONDS / 5
        while group.exists():
            # After its end, a process stays in the group for a moment.
            with suppress(OSError):
                group.rmdir()
            assert time.monotonic() < deadline, "a process is left in the control group"


def test_the_memory_limit_of_a_control_group_is_reported() -> None:
    with control_group("memory", "memory.limit_in_bytes", 512 << 20) as group:
        code, rows = examine_with(lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    assert code == 0
    assert rows["memory"]["state"] == "limited"
    assert "; the control group may use 512 MiB and uses " in rows["memory"]["found"]
    assert f"the limit is in {group}/memory.limit_in_bytes" in rows["memory"]["to_do"]


def test_the_process_limit_of_a_control_group_is_reported() -> None:
    with control_group("pids", "pids.max", 12) as group:
        code, rows = examine_with(lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    assert code == 1
    row = rows["processes"]
    assert row["state"] == "does not work"
    assert f"by {group}/pids.max: enough for about 0 workers" in row["found"]
    assert row["to_do"] == "raise `ulimit -u`, or the pids limit of the container"


def test_a_limit_of_locked_memory_is_reported() -> None:
    def forbid_locked_memory() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        if os.geteuid() == 0:  # root may lock memory in spite of the limit
            os.setuid(65534)

    with command_for_all_users() as program:
        _, rows = examine_with(forbid_locked_memory, program)
    assert rows["locked memory"]["state"] == "limited"
    assert rows["locked memory"]["to_do"] == "raise `ulimit -l`"


def test_limits_that_make_heaps_small_are_reported() -> None:
    def limit_address_space_and_files() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))

    rows_before = run_doctor()
    assert rows_before["shared heap"]["found"].endswith("; only what is used costs memory")
    code, rows = examine_with(limit_address_space_and_files)
    assert code == 0
    assert rows["address space"]["found"] == "4.0 GiB (`ulimit -v`)"
    assert rows["file size"]["found"].startswith("256 MiB (`ulimit -f`): enough for about ")
    assert "raise it" in rows["address space"]["to_do"] + rows["file size"]["to_do"]
    ranks = re.match(r"(\d+) MiB for each rank, if there are (\d+);", rows["shared heap"]["found"])
    assert ranks is not None, rows["shared heap"]
    assert int(ranks[1]) == min(256, 1024 // int(ranks[2]) // 2 * 2)
    assert "raise `ulimit -v` and `ulimit -f`" in rows["shared heap"]["to_do"]


@pytest.mark.parametrize(("workers", "is_enough"), [(0, False), (1, True)])
def test_a_limit_of_file_size_agrees_with_jobs(workers: int, is_enough: bool) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((6 << 20) - 4096 * (not is_enough),) * 2)

    code, rows = examine_with(limit_files)
    row = rows["file size"]
    assert row["found"].endswith(f": enough for about {workers} worker" + "s" * (not is_enough))
    assert "raise it" in row["to_do"]
    assert (code == 0) == is_enough == (row["state"] == "limited")
    program = (sys.executable, "-c", "import farandole; farandole.init()")
    with CommandRun("run", "-n", "1", *program, before_exec=limit_files) as job:
        assert (job.end() == 0) == is_enough, job.errors
    assert ("raise the file size limit" in job.errors) != is_enough


def test_with_the_smallest_files_no_check_crashes() -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 10, 10 << 10))

    with CommandRun("doctor", before_exec=limit_files) as job:
        assert job.end() == 1
    assert "crashed" not in job.output
    assert job.output.splitlines()[-1] == "Jobs cannot run here, because of: file size"


def test_a_chosen_heap_size_is_shown() -> None:
    row = run_doctor({"FARANDOLE_HEAP_BYTES": str(64 << 20)})["shared heap"]
    assert row["state"] == "works"
    assert row["found"].startswith("64 MiB for each rank (FARANDOLE_HEAP_BYTES); only")


ENOSYS = 38
# For each system call: its number on x86-64, the checks that fail without it, and the exit code of
# the command.
SYSTEM_CALLS = {
    "pidfd_open": (434, ["process handles"], 1),
    "memfd_create": (319, ["shared memory", "wake-ups", "descriptor passing", "python3"], 1),
    "process_vm_readv": (310, ["memory of others"], 0),
    "signalfd4": (289, ["events"], 1),
}


def block_system_call(number: int) -> None:
    """Block a system call by a filter, as in a container whose seccomp profile does not allow the
    call."""
    load_word, jump_if_equal, return_ = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    reject, allow = 0x00050000 | ENOSYS, 0x7FFF0000
    steps = [
        (load_word, 0, 0, 0),
        (jump_if_equal, 0, 1, number),
        (return_, 0, 0, reject),
        (return_, 0, 0, allow),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    instructions = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, filter_mode, program, 0, 0) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls have other numbers here")
@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_checks_that_need_a_rejected_system_call_do_not_work(call: str) -> None:
    number, names, expected = SYSTEM_CALLS[call]
    code, rows = examine_with(lambda: block_system_call(number))
    assert code == expected
    failed_checks = [name for name in rows if rows[name]["state"] == "does not work"]
    assert failed_checks[: len(names)] == names
    for name in names:
        assert "Function not implemented" in rows[name]["found"]
    assert "seccomp" in rows[names[0]]["to_do"]


def test_a_missing_python_is_not_installed(tmp_path: Path) -> None:
    rows = run_doctor({"PATH": str(tmp_path)}, command_without_python(tmp_path))
    assert (
        rows["python3"]["found"] == "python3 is neither in the folder of this command nor in PATH"
    )
    for name in ("python3", "farandole for Python", *FRAMEWORKS):
        assert rows[name]["state"] == "not installed"


def put_in_path(folder: Path, name: str, script: str) -> dict[str, str]:
    """Make a program from a shell script; return the variable PATH with its folder in front."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_the_python_in_path_is_examined(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version in (("torch", "2.99"), ("ray", "7.1"), ("tensorflow_cpu", "3.0")):
        metadata_folder = site / f"{name}-{version}.dist-info"
        metadata_folder.mkdir(parents=True)
        distribution = name.replace("_", "-")
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (metadata_folder / "METADATA").write_text(text)
    script = f'exec {sys.executable} -S "$@"'  # this Python finds packages only in PYTHONPATH
    environment = {**put_in_path(tmp_path, "python3", script), "PYTHONPATH": str(site)}
    rows = run_doctor(environment, command_without_python(tmp_path))
    version = ".".join(map(str, sys.version_info[:3]))
    assert rows["python3"]["state"] == "works"
    assert rows["python3"]["found"].startswith(f"{version} at ")
    assert rows["farandole for Python"]["state"] == "not installed"
    assert "activate the environment that has it" in rows["farandole for Python"]["to_do"]
    for name, number in (("torch", "2.99"), ("ray", "7.1"), ("tensorflow", "3.0")):
        assert rows[name]["found"] == f"{number}: this Python has no package farandole"
        assert rows[name]["state"] == "limited"
    assert rows["jax"]["state"] == "not installed"


PACKAGES = {"works": ("", "9.9, with frontends: torch"), "does not work": ("1 / 0", "division")}


@pytest.mark.parametrize("state", PACKAGES)
def test_the_package_is_imported(state: str, tmp_path: Path) -> None:
    code, words = PACKAGES[state]
    for name, version in (("farandole", "9.9"), ("torch", "2.99"), ("jax", "1.0")):
        metadata_folder = tmp_path / f"{name}-{version}.dist-info"
        metadata_folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (metadata_folder / "METADATA").write_text(text)
    (tmp_path / "farandole" / "torch").mkdir(parents=True)
    (tmp_path / "farandole" / "__init__.py").write_text(code)
    (tmp_path / "farandole" / "torch" / "__init__.py").touch()
    environment = put_in_path(tmp_path, "python3", f'exec {sys.executable} -S "$@"')
    rows = run_doctor(
        {**environment, "PYTHONPATH": str(tmp_path)}, command_without_python(tmp_path)
    )
    assert rows["farandole for Python"]["state"] == state
    assert words in rows["farandole for Python"]["found"]
    assert rows["jax"]["found"] == "1.0: there is no frontend for it yet"
    if state == "works":
        assert rows["torch"]["found"] == "2.99: import farandole.torch"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such thing >&2; exit 3", "python3: exit code 3: no such thing"),
        ("kill -SEGV $$", "python3: killed by SIGSEGV"),
        ("kill -35 $$", "python3: killed by signal 35"),  # signal 35 has no name
        ("echo hello", "python3: it does not answer as Python does"),
        ("sleep 1000", NO_ANSWER),
    ],
)
def test_a_broken_python_does_not_stop_the_other_checks(
    script: str, words: str, tmp_path: Path
) -> None:
    names = ("python3", "farandole for Python", *FRAMEWORKS)
    hanging = names if words == NO_ANSWER else ()
    rows = run_doctor(
        put_in_path(tmp_path, "python3", script), command_without_python(tmp_path), hanging
    )
    for name in names:
        assert rows[name]["state"] == "does not work"
        assert rows[name]["found"] == words
    assert rows["py-spy"]["state"] in ("works", "not installed")


def test_foreign_text_is_made_visible(tmp_path: Path) -> None:
    script = "printf '\\033]0;title\\007\\303\\050\\n' >&2; exit 3"
    environment = put_in_path(tmp_path, "python3", script)
    with CommandRun(
        "doctor", environment=environment, program=command_without_python(tmp_path)
    ) as job:
        assert job.end() == 0, job.errors
    shown_lines = [line for line in job.output.splitlines() if line.startswith("python3 ")]
    assert len(shown_lines) == 1
    assert shown_lines[0].endswith(r"python3: exit code 3: \x1b]0;title\x07\xc3("), shown_lines[0]
    assert "\x1b" not in job.output


RAISES_SEVERAL_LINES = """
class Odd(ImportError):
    pass
raise Odd("one\\ntwo\\x1b[31m")
"""


def test_an_error_of_several_lines_is_shown_on_one_line(tmp_path: Path) -> None:
    package = tmp_path / "farandole"
    package.mkdir()
    (package / "__init__.py").write_text(RAISES_SEVERAL_LINES)
    metadata_folder = tmp_path / "farandole-9.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: farandole\nVersion: 9\n"
    )
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    job = run("doctor", environment={**python, "PYTHONPATH": str(tmp_path)})
    assert r"9; import farandole: Odd: one two\x1b[31m" in job.output, job.output


def test_py_spy_beside_the_command_is_found_too(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy2(command(), folder / "farandole")

    def found_state() -> tuple[str, str]:
        words = [folder / "farandole", "doctor", "--json"]
        job = subprocess.run(words, env={"PATH": "/nowhere"}, capture_output=True, check=False)
        row = rows_of(job.stdout.decode())["py-spy"]
        return row["state"], row["found"]

    not_found = "py-spy is neither in PATH nor in the folder of this command"
    assert found_state() == ("not installed", not_found)
    (folder / "py-spy").write_text("#!/bin/sh\necho py-spy 8.8.8\n")
    (folder / "py-spy").chmod(0o755)
    assert found_state() == ("works", "py-spy 8.8.8")


def test_the_version_of_py_spy_is_shown(tmp_path: Path) -> None:
    rows = run_doctor(put_in_path(tmp_path, "py-spy", "echo py-spy 9.9.9"))
    assert (rows["py-spy"]["state"], rows["py-spy"]["found"]) == ("works", "py-spy 9.9.9")


CUDA_LIBRARY_SOURCE = "int cuDriverGetVersion(int *number) { *number = 12040; return 0; }"
LIBRARIES = {
    CUDA_LIBRARY_SOURCE: (
        "works",
        "libcuda.so.1: version 12.4; tensors on GPUs go through host memory",
    ),
    "int cuDriverGetVersion(int *number) { return 100; }": (
        "does not work",
        "libcuda.so.1 loads, but cuDriverGetVersion fails; tensors on GPUs go through host memory",
    ),
    "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }": (
        "does not work",
        "the check crashed: SIG",
    ),
    "int pause(void);\n__attribute__((constructor)) static void hang(void) { pause(); }": (
        "does not work",
        NO_ANSWER,
    ),
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("code", LIBRARIES)
def test_a_library_that_loads_crashes_or_hangs(code: str, tmp_path: Path) -> None:
    (tmp_path / "cuda.c").write_text(code + "\n")
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    state, words = LIBRARIES[code]
    hanging = ["CUDA driver"] if words == NO_ANSWER else []
    rows = run_doctor({"LD_LIBRARY_PATH": str(tmp_path)}, hanging=hanging)
    assert rows["CUDA driver"]["state"] == state
    assert rows["CUDA driver"]["found"].startswith(words)
    assert rows["NCCL"]["state"] in ("works", "not installed")


@pytest.mark.parametrize("has_no_color", [False, True])
def test_colors_only_on_a_terminal_and_without_no_color(has_no_color: bool) -> None:
    own_end, terminal_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1" if has_no_color else ""}
    process = subprocess.Popen([command(), "doctor"], stdout=terminal_end, env=environment)
    os.close(terminal_end)
    text = b""
    while True:
        try:
            text += os.read(own_end, 65536)
        except OSError:  # the other end is closed
            break
    os.close(own_end)
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert (b"\x1b[32mworks" in text) != has_no_color
    assert (b"\x1b" in text) != has_no_color
