"""Jobs over several hosts that `farandole run -H` starts: ranks, environments and output."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from driven import POLL_SECONDS, WAITING_NOTICES, SshHosts, make_ssh_hosts
from launched import TIMEOUT_SECONDS, CommandRun, run

SHOW_VARIABLES = (
    'echo "RANK=$RANK SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK LOCAL_SIZE=$LOCAL_WORLD_SIZE '
    'GROUP_RANK=$GROUP_RANK MASTER=$MASTER_ADDR/$MASTER_PORT FOLDER=$(pwd)"'
)
# A worker that writes its environment and its arguments to files in the folder $1.
DUMP_SCRIPT = (
    'folder=$1; shift; env -0 >"$folder/env.$RANK"; printf "%s\\0" "$@" >"$folder/args.$RANK"'
)
SPECIAL_TEXTS = [
    "",
    " ",
    "two  words",
    "$x `id` $(id) ${HOME}",
    'it\'s "quoted" \\ \\n',
    "two\nlines\n",
    "*",
    "--",
    "-n",
    "--prefix",
    "[a,b]",
    "{rank}",
    "a;b|c&d>e<f#g!h~",
    "café ✓",
    "\t\x1b[31m",
    "%s%n",
]
NUMBER_COUNT = 650_000  # more than 5 MB
WAIT_SCRIPT = "echo waits as $$; exec sleep 1000"


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as hosts:
        yield hosts


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))


def fields_by_rank(job: CommandRun) -> dict[int, dict[str, str]]:
    """Each worker has written one line. Return the fields of these lines, by rank."""
    lines = sorted(job.output.splitlines())
    return {int(line[1 : line.index("]")]): fields(line) for line in lines}


def expect_success(job: CommandRun) -> CommandRun:
    assert job.process.returncode == 0, job.errors
    return job


def environment_of(folder: Path, rank: int) -> dict[str, str]:
    lines = (folder / f"env.{rank}").read_text().split("\0")[:-1]
    return dict(line.split("=", 1) for line in lines)


def dump_environments(
    ssh_hosts: SshHosts,
    folder: Path,
    *options: str,
    arguments: tuple[str, ...] = (),
    **run_options: Any,
) -> list[dict[str, str]]:
    """Run a job with one worker on each of host1, the driver's own host, and host2. Return the
    environments of the workers, by rank. DUMP_SCRIPT also writes their arguments to files."""
    hosts = f"host1,{ssh_hosts.hosts[0].v4},host2"
    words = ("-H", hosts, *options, "sh", "-c", DUMP_SCRIPT, "sh", str(folder), *arguments)
    expect_success(ssh_hosts.run(*words, **run_options))
    return [environment_of(folder, rank) for rank in range(3)]


@pytest.mark.parametrize(
    "names",
    [
        ["own", "host1"],
        ["host1", "own"],
        ["host1", "host2"],
        ["host0", "host2"],  # over ssh to the driver's own host
        ["localhost", "host1"],
        ["host1", "127.0.0.1"],
        ["host2", "own", "host1"],
        ["host1"],
    ],
)
def test_ranks_follow_the_order_of_the_hosts(
    ssh_hosts: SshHosts, names: list[str], tmp_path: Path
) -> None:
    addresses = {f"host{node}": ssh_hosts.hosts[node].v4 for node in range(3)}
    own_address = addresses["host0"]
    host_names = [own_address if name == "own" else name for name in names]
    job = expect_success(
        ssh_hosts.run(
            "-H",
            ",".join(f"{name}:2" for name in host_names),
            "sh",
            "-c",
            SHOW_VARIABLES,
            folder=tmp_path,
        )
    )
    first_host = addresses.get(host_names[0], own_address)
    shown_by_rank = fields_by_rank(job)
    assert sorted(shown_by_rank) == list(range(2 * len(names)))
    for rank, variables in shown_by_rank.items():
        assert variables["SIZE"] == str(2 * len(names))
        assert (variables["LOCAL_RANK"], variables["LOCAL_SIZE"]) == (str(rank % 2), "2")
        assert variables["GROUP_RANK"] == str(rank // 2)
        assert variables["FOLDER"] == str(tmp_path)
        assert variables["MASTER"] == shown_by_rank[0]["MASTER"]
    master, port = shown_by_rank[0]["MASTER"].split("/")
    assert master == first_host
    assert int(port) > 0


def test_the_workers_run_on_the_hosts(ssh_hosts: SshHosts) -> None:
    job = expect_success(
        ssh_hosts.run("-H", "host2,host0,host1", "ip", "-4", "addr", "show", "eth0")
    )
    shown_by_rank = dict(re.findall(r"^\[(\d)\] +inet ([\d.]+)", job.output, re.MULTILINE))
    assert shown_by_rank == {str(r): ssh_hosts.hosts[node].v4 for r, node in enumerate([2, 0, 1])}


def test_the_environment_of_the_driver(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    passed_variables = {
        "OMP_NUM_THREADS": "3",
        "FARANDOLE_LOG_LEVEL": "debug",
        "FARANDOLE_ODD": 'it\'s "quoted" $x\nand a line',
        "PYTHONPATH": "/one folder:/two",
        "LC_TIME": "C",
        "SOMETHING": "of the driver",
    }
    other_variables = {
        "HOME": "/home/of the driver",
        "SSH_CONNECTION": "of the driver",
        "SSH_AUTH_SOCK": "/of the driver",
        "USER": "driver",
    }
    environments = dump_environments(
        ssh_hosts, tmp_path, environment=passed_variables | other_variables
    )
    for rank, environment in enumerate(environments):
        assert environment.items() >= passed_variables.items()
        if rank == 1:  # the driver's own host
            assert environment.items() >= other_variables.items()
        else:
            assert environment["HOME"] == str(ssh_hosts.servers.home(f"host{rank or 1}"))
            assert environment["SSH_CONNECTION"].split()[0] == ssh_hosts.hosts[0].v4
            for name in ("SSH_AUTH_SOCK", "USER"):
                assert environment.get(name) != other_variables[name]


def test_given_variables_arrive_unchanged(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    given_variables = {f"GIVEN_{number}": text for number, text in enumerate(SPECIAL_TEXTS)}
    options = [word for name, text in given_variables.items() for word in ("-x", f"{name}={text}")]
    own_variables = {f"HERE_{number}": text for number, text in enumerate(SPECIAL_TEXTS)}
    options += [word for name in own_variables for word in ("-x", name)]
    options += ["-x", "TWICE=first", "-x", "TWICE=last", "-x", "HOME=/given", "-x", "A=b=c"]
    for environment in dump_environments(ssh_hosts, tmp_path, *options, environment=own_variables):
        assert environment.items() >= given_variables.items()
        assert environment.items() >= own_variables.items()
        assert (environment["TWICE"], environment["HOME"]) == ("last", "/given")
        assert environment["A"] == "b=c"


def test_arguments_arrive_unchanged(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    arguments = (*SPECIAL_TEXTS, "x" * 100_000, "")
    dump_environments(ssh_hosts, tmp_path, arguments=arguments)
    for rank in range(3):
        assert (tmp_path / f"args.{rank}").read_text().split("\0")[:-1] == list(arguments)


def test_flags_reach_all_hosts(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    options = ("--log-level", "debug", "--start-timeout", "77", "-x", "OMP_NUM_THREADS=5")
    for environment in dump_environments(ssh_hosts, tmp_path, *options):
        assert environment["FARANDOLE_LOG_LEVEL"] == "debug"
        assert environment["FARANDOLE_START_TIMEOUT"] == "77"
        assert environment["OMP_NUM_THREADS"] == "5"


def test_the_streams_stay_apart(ssh_hosts: SshHosts) -> None:
    script = "echo out; echo err >&2; echo; printf 'no end'; printf 'no end' >&2"
    job = expect_success(ssh_hosts.run("-H", "host0,host1", "sh", "-c", script))
    output = [f"[{rank}] {text}" for rank in range(2) for text in ("out", "", "no end")]
    assert sorted(job.output.splitlines()) == sorted(output)
    assert job.output.endswith("\n")
    errors = job.errors.splitlines()
    assert sorted(errors)[:4] == ["[0] err", "[0] no end", "[1] err", "[1] no end"]
    expected = ("[", "farandole: no worker of this", *WAITING_NOTICES)
    assert [line for line in errors if not line.startswith(expected)] == []


def test_long_output_is_complete(ssh_hosts: SshHosts) -> None:
    job = expect_success(
        ssh_hosts.run("-H", "host1,host2", "sh", "-c", f"seq -f 'n%.0f' {NUMBER_COUNT}")
    )
    numbers = [f"n{number}" for number in range(1, NUMBER_COUNT + 1)]
    lines = job.output.splitlines()
    for rank in range(2):
        prefix = f"[{rank}] "
        assert [line[4:] for line in lines if line.startswith(prefix)] == numbers
    assert len(lines) == 2 * NUMBER_COUNT


def test_a_long_line_is_cut_as_on_one_host(ssh_hosts: SshHosts) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' a"
    ssh_job = expect_success(ssh_hosts.run("-H", "host1", "sh", "-c", script))
    local_job = expect_success(run("run", "-n", "1", "sh", "-c", script))
    assert ssh_job.output == local_job.output


def test_the_driver_applies_prefix_and_tag_rank(ssh_hosts: SshHosts) -> None:
    options = ("--prefix", "{rank}/{local_rank} {stream}: ", "--tag-rank", "1-2")
    script = "echo out; echo err >&2"
    job = expect_success(ssh_hosts.run("-H", "host0:2,host1:2", *options, "sh", "-c", script))
    assert sorted(job.output.splitlines()) == ["1/1 stdout: out", "2/0 stdout: out"]
    assert sorted(job.errors.splitlines())[:2] == ["1/1 stderr: err", "2/0 stderr: err"]


@pytest.mark.parametrize("prefix", ["", "--", "-x ", "[a,b]", "a'b $x "])
def test_special_characters_in_the_prefix_are_kept(ssh_hosts: SshHosts, prefix: str) -> None:
    flag = ("--prefix=--",) if prefix == "--" else ("--prefix", prefix)
    job = expect_success(ssh_hosts.run("-H", "host0,host1", *flag, "sh", "-c", "echo here"))
    assert job.output == f"{prefix}here\n" * 2


@pytest.mark.parametrize("hosts", ["own:2,host1:2", "host1:1,host2:3"])
def test_the_files_of_all_ranks_are_gathered(
    ssh_hosts: SshHosts, hosts: str, tmp_path: Path
) -> None:
    script = "echo out $RANK; echo err $RANK >&2; printf '\\033\\000no end'"
    hosts = hosts.replace("own", ssh_hosts.hosts[0].v4)
    words = ("-H", hosts, "--tag-rank", "0", "--output-dir", "log", "sh", "-c", script)
    with ssh_hosts.hide_folder(1, tmp_path):  # so that host1 has a folder of its own at this path
        job = expect_success(ssh_hosts.run(*words, folder=tmp_path))
        assert list(ssh_hosts.path_on_host(1, tmp_path).iterdir()) == []
    assert job.output.startswith("[0] out 0\n")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("std*"))
    assert files == [
        f"log/rank.{rank}/{name}" for rank in range(4) for name in ("stderr", "stdout")
    ]
    for rank in range(4):
        folder = tmp_path / f"log/rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"out %d\n\x1b\0no end" % rank
        assert (folder / "stderr").read_text() == f"err {rank}\n"


def test_much_output_is_gathered_completely(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    words = ("-H", "host1:2,host2:1", "--output-dir", str(tmp_path), "--prefix", "")
    job = expect_success(ssh_hosts.run(*words, "sh", "-c", f"seq -f 'n%.0f' {NUMBER_COUNT}"))
    expected = "".join(f"n{number}\n" for number in range(1, NUMBER_COUNT + 1))
    for rank in range(3):
        assert (tmp_path / f"rank.{rank}/stdout").read_text() == expected
    assert len(job.output) == 3 * len(expected)


def test_a_file_that_cannot_be_written_ends_no_job(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    script = (
        f"until test -e {tmp_path}/go; do sleep 0.1; done; echo late; touch {tmp_path}/done.$RANK"
    )
    words = ("-H", "host0,host1", "--output-dir", str(tmp_path / "log"), "sh", "-c", script)
    with ssh_hosts.start(*words) as job:
        while not (file := tmp_path / "log/rank.1/stdout").exists():
            time.sleep(0.02)
        file.unlink()
        (tmp_path / "go").touch()
        job.end()
        ssh_hosts.wait_for_end_of(job)
    assert job.process.returncode == 0
    assert f"{tmp_path}/log/rank.1/stdout" in job.errors
    assert (tmp_path / "log/rank.0/stdout").read_text() == "late\n"


def test_fewer_workers_than_slots_fill_the_first_hosts(ssh_hosts: SshHosts) -> None:
    hosts = ("-H", "host0:2,host1:2,host2:2")
    three_workers = fields_by_rank(
        expect_success(ssh_hosts.run(*hosts, "-n", "3", "sh", "-c", SHOW_VARIABLES))
    )
    assert {rank: variables["GROUP_RANK"] for rank, variables in three_workers.items()} == {
        0: "0",
        1: "0",
        2: "1",
    }
    assert [three_workers[rank]["LOCAL_SIZE"] for rank in range(3)] == ["2", "2", "1"]
    one_worker = fields_by_rank(
        expect_success(ssh_hosts.run(*hosts, "-n1", "sh", "-c", SHOW_VARIABLES))
    )
    assert {rank: variables["SIZE"] for rank, variables in one_worker.items()} == {0: "1"}


HOSTFILES = [
    "host0 slots=2\nhost1 slots=2 max_slots=4\n",  # Open MPI
    "# hosts\nhost0:2 # two\r\n\n  host1:2",  # Hydra
    "host0 slots=2\nroot@host1 slots=2\n",  # Horovod
    "host0\nhost1\nhost0\nhost1\n",  # one line per slot
]


@pytest.mark.parametrize("text", HOSTFILES)
def test_hostfiles_of_all_formats_are_read(ssh_hosts: SshHosts, text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    words = ("--hostfile", "hosts", "sh", "-c", SHOW_VARIABLES)
    shown_by_rank = fields_by_rank(expect_success(ssh_hosts.run(*words, folder=tmp_path)))
    assert {rank: variables["GROUP_RANK"] for rank, variables in shown_by_rank.items()} == {
        0: "0", 1: "0", 2: "1", 3: "1",
    }  # fmt: skip


def test_a_host_that_is_given_twice_has_the_sum_of_its_slots(ssh_hosts: SshHosts) -> None:
    words = ("-H", "host1,host0:2,host1", "sh", "-c", SHOW_VARIABLES)
    shown_by_rank = fields_by_rank(expect_success(ssh_hosts.run(*words)))
    assert [shown_by_rank[rank]["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert shown_by_rank[0]["LOCAL_SIZE"] == "2"


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_hosts_may_have_only_ipv6(tmp_path: Path, order: list[int]) -> None:
    with make_ssh_hosts(2, tmp_path, v6_only=True, port=2222) as ssh_hosts:
        names = ",".join(f"[{ssh_hosts.hosts[node].v6}]:2" for node in order)
        words = ("--ssh-port", "2222", "-H", names, "sh", "-c", SHOW_VARIABLES)
        shown_by_rank = fields_by_rank(expect_success(ssh_hosts.run(*words)))
        assert {
            rank: variables["SIZE"] for rank, variables in shown_by_rank.items()
        } == dict.fromkeys(range(4), "4")
        first_address = ssh_hosts.hosts[order[0]].v6
        assert {variables["MASTER"].split("/")[0] for variables in shown_by_rank.values()} == {
            first_address
        }


@pytest.mark.parametrize("name", ["localhost", "own", "[::1]"])
def test_a_job_on_this_host_only_is_not_started_over_ssh(ssh_hosts: SshHosts, name: str) -> None:
    host = ssh_hosts.hosts[0].v4 if name == "own" else name
    # Rank 1 ends last, because the launcher would end rank 0 after the failure of rank 1.
    script = ("sh", "-c", f"{SHOW_VARIABLES}; sleep $RANK; exit $RANK")
    logins_before = ssh_hosts.login_count(0)
    over_hosts = ssh_hosts.run("-H", f"{host}:2", *script)
    local_job = ssh_hosts.run("-n", "2", *script)

    def output_without_numbers(job: CommandRun) -> list[str]:
        text = re.sub(r"pid \d+|MASTER=127.0.0.1/\d+", "", job.output + job.errors)
        return sorted(re.sub(r" +│", "", text).splitlines())

    assert output_without_numbers(over_hosts) == output_without_numbers(local_job)
    assert (over_hosts.process.returncode, local_job.process.returncode) == (1, 1)
    assert ssh_hosts.login_count(0) == logins_before


def test_each_launcher_binds_its_own_workers(ssh_hosts: SshHosts) -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("there is one hardware thread only")
    words = ("--bind-to", "core", "grep", "Cpus_allowed_list", "/proc/self/status")
    job = expect_success(ssh_hosts.run("-H", "host1:2,host2:2", *words))
    shown_by_rank = dict(
        re.findall(r"^\[(\d)\] Cpus_allowed_list:\s(\S+)", job.output, re.MULTILINE)
    )
    # All hosts of this test have the cores of this machine.
    assert sorted(shown_by_rank) == ["0", "1", "2", "3"]
    assert (shown_by_rank["0"], shown_by_rank["1"]) == (shown_by_rank["2"], shown_by_rank["3"])
    assert shown_by_rank["0"] != shown_by_rank["1"]


def test_the_engine_works_over_the_hosts(ssh_hosts: SshHosts) -> None:
    worker = Path(__file__).with_name("small_worker.py")
    program = (sys.executable, str(worker), "make_few_calls")
    job = expect_success(ssh_hosts.run("-H", f"{ssh_hosts.hosts[0].v4}:2,host1:2", *program))
    shown_by_rank = dict(re.findall(r"^\[(\d)\] (.+)", job.output, re.MULTILINE))
    assert sorted(shown_by_rank) == ["0", "1", "2", "3"]
    assert len(set(shown_by_rank.values())) == 1


def test_torch_distributed_finds_all_ranks(ssh_hosts: SshHosts) -> None:
    """The workers get the variables that torchrun would set. With these variables, PyTorch's own
    backend gloo connects the ranks without Farandole."""
    program = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "sums = torch.tensor([1.0, 10.0**dist.get_rank()])\n"
        "dist.all_reduce(sums)\n"
        "print('sums', *map(int, sums), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    interface = ("-x", "GLOO_SOCKET_IFNAME=eth0")
    job = expect_success(
        ssh_hosts.run("-H", "host1:2,host2:1", *interface, sys.executable, "-c", program)
    )
    assert sorted(re.findall(r"^\[\d\] .*", job.output, re.MULTILINE)) == [
        f"[{rank}] sums 3 111" for rank in range(3)
    ]


def test_standard_input_is_empty(ssh_hosts: SshHosts) -> None:
    job = expect_success(ssh_hosts.run("-H", "host0,host1", "sh", "-c", "wc -c; echo end"))
    assert sorted(job.output.split()) == ["0", "0", "[0]", "[0]", "[1]", "[1]", "end", "end"]


def processes_with(text: str) -> tuple[list[int], list[int]]:
    """Return two lists of process ids: those with this text in their command line, and those with
    it in their environment."""
    pid_lists: tuple[list[int], list[int]] = ([], [])
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        for pids, name in zip(pid_lists, ("cmdline", "environ"), strict=True):
            with suppress(OSError):  # the process may have ended
                if text.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                    pids.append(pid)
    return pid_lists


def files_with(text: str, changed_since: float, *folders: Path) -> list[Path]:
    """List the files below 64 MiB that contain a text and have changed at `changed_since` or later.

    Larger files belong to other tests, which run at the same time.
    """
    files = []
    folder_walks = itertools.chain.from_iterable(map(os.walk, folders))
    for file in (Path(folder, name) for folder, _, names in folder_walks for name in names):
        with suppress(OSError):  # another test may have removed the file
            state = file.lstat()
            is_recent = stat.S_ISREG(state.st_mode) and state.st_mtime >= changed_since
            if is_recent and state.st_size < 64 << 20 and text.encode() in file.read_bytes():
                files.append(file)
    return files


def test_values_are_shown_to_the_workers_only(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    changed_since = time.time() - 2  # the file system may store times in whole seconds
    canary = secrets.token_hex(16)
    hosts = f"{ssh_hosts.hosts[0].v4},host0,host1:2"
    with ssh_hosts.start(
        "-H", hosts, "-x", f"CANARY={canary}", "sh", "-c", WAIT_SCRIPT, folder=tmp_path
    ) as job:
        job.read_until("waits as", times=4)
        workers = {int(pid) for pid in re.findall(r"waits as (\d+)", job.output)}
        deadline = time.monotonic() + TIMEOUT_SECONDS / 2
        while len((pid_lists := processes_with(canary))[1]) < 4 and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)  # /proc shows no environment during an exec
        pids_by_words, pids_by_environment = pid_lists
        folders = (ssh_hosts.servers.folder, tmp_path, Path("/tmp"), Path("/dev/shm"))
        files = files_with(canary, changed_since, *folders)
        job.send(signal.SIGTERM)
        job.end()
        ssh_hosts.wait_for_end_of(job)
    assert pids_by_words == [job.process.pid]  # the user's own command line shows the value
    assert set(pids_by_environment) == workers
    assert files == []
    assert canary not in job.output + job.errors
