"""Jobs over several hosts that `farandole run -H` starts: places, environments, output."""

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
from driven import POLL_SECONDS, SshHosts, made_ssh_hosts
from launched import HANG_SECONDS, Launched, run

SHOW_PLACE = (
    'echo "RANK=$RANK SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK LOCAL_SIZE=$LOCAL_WORLD_SIZE '
    'GROUP_RANK=$GROUP_RANK MASTER=$MASTER_ADDR/$MASTER_PORT FOLDER=$(pwd)"'
)
# Writes the environment and the arguments of a worker to files in the folder $1.
DUMP = 'folder=$1; shift; env -0 >"$folder/env.$RANK"; printf "%s\\0" "$@" >"$folder/args.$RANK"'
UNUSUAL_TEXTS = [
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
NUMBERS = 650_000  # more than 5 MB
WAIT = "echo waits as $$; exec sleep 1000"


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with made_ssh_hosts(3, tmp_path_factory.mktemp("ssh hosts")) as made:
        yield made


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))


def by_rank(job: Launched) -> dict[int, dict[str, str]]:
    """Return the fields of the output's lines, by rank."""
    lines = sorted(job.output.splitlines())
    return {int(line[1 : line.index("]")]): fields(line) for line in lines}


def succeeded(job: Launched) -> Launched:
    assert job.process.returncode == 0, job.errors
    return job


def environment_of(folder: Path, rank: int) -> dict[str, str]:
    lines = (folder / f"env.{rank}").read_text().split("\0")[:-1]
    return dict(line.split("=", 1) for line in lines)


def dump(
    ssh_hosts: SshHosts, folder: Path, *options: str, arguments: tuple[str, ...] = (), **more: Any
) -> list[dict[str, str]]:
    """Run a job on host1, on the driver's own host, and on host2, with one worker each. Return the
    environments of the workers; their arguments are in files."""
    hosts = f"host1,{ssh_hosts.hosts[0].v4},host2"
    words = ("-H", hosts, *options, "sh", "-c", DUMP, "sh", str(folder), *arguments)
    succeeded(ssh_hosts.run(*words, **more))
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
def test_ranks_and_places(ssh_hosts: SshHosts, names: list[str], tmp_path: Path) -> None:
    addresses = {f"host{node}": ssh_hosts.hosts[node].v4 for node in range(3)}
    own = addresses["host0"]
    listed = [own if name == "own" else name for name in names]
    job = succeeded(
        ssh_hosts.run(
            "-H", ",".join(f"{name}:2" for name in listed), "sh", "-c", SHOW_PLACE, folder=tmp_path
        )
    )
    first = addresses.get(listed[0], own)
    shown = by_rank(job)
    assert sorted(shown) == list(range(2 * len(names)))
    for rank, place in shown.items():
        assert place["SIZE"] == str(2 * len(names))
        assert (place["LOCAL_RANK"], place["LOCAL_SIZE"]) == (str(rank % 2), "2")
        assert place["GROUP_RANK"] == str(rank // 2)
        assert place["FOLDER"] == str(tmp_path)
        assert place["MASTER"] == shown[0]["MASTER"]
    master, port = shown[0]["MASTER"].split("/")
    assert master == first
    assert int(port) > 0


def test_the_workers_run_on_the_hosts(ssh_hosts: SshHosts) -> None:
    job = succeeded(ssh_hosts.run("-H", "host2,host0,host1", "ip", "-4", "addr", "show", "eth0"))
    shown = dict(re.findall(r"^\[(\d)\] +inet ([\d.]+)", job.output, re.MULTILINE))
    assert shown == {str(r): ssh_hosts.hosts[node].v4 for r, node in enumerate([2, 0, 1])}


def test_the_environment_of_the_driver(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    passed = {
        "OMP_NUM_THREADS": "3",
        "FARANDOLE_LOG_LEVEL": "debug",
        "FARANDOLE_ODD": 'it\'s "quoted" $x\nand a line',
        "PYTHONPATH": "/one folder:/two",
        "LC_TIME": "C",
        "SOMETHING": "of the driver",
    }
    not_passed = {
        "HOME": "/home/of the driver",
        "SSH_CONNECTION": "of the driver",
        "SSH_AUTH_SOCK": "/of the driver",
        "USER": "driver",
    }
    environments = dump(ssh_hosts, tmp_path, environment=passed | not_passed)
    for rank, environment in enumerate(environments):
        assert environment.items() >= passed.items()
        if rank == 1:  # the driver's own host
            assert environment.items() >= not_passed.items()
        else:
            assert environment["HOME"] == str(ssh_hosts.servers.home(f"host{rank or 1}"))
            assert environment["SSH_CONNECTION"].split()[0] == ssh_hosts.hosts[0].v4
            for name in ("SSH_AUTH_SOCK", "USER"):
                assert environment.get(name) != not_passed[name]


def test_given_variables_arrive_unchanged(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    given = {f"GIVEN_{number}": text for number, text in enumerate(UNUSUAL_TEXTS)}
    options = [word for name, text in given.items() for word in ("-x", f"{name}={text}")]
    here = {f"HERE_{number}": text for number, text in enumerate(UNUSUAL_TEXTS)}
    options += [word for name in here for word in ("-x", name)]
    options += ["-x", "TWICE=first", "-x", "TWICE=last", "-x", "HOME=/given", "-x", "A=b=c"]
    for environment in dump(ssh_hosts, tmp_path, *options, environment=here):
        assert environment.items() >= given.items()
        assert environment.items() >= here.items()
        assert (environment["TWICE"], environment["HOME"]) == ("last", "/given")
        assert environment["A"] == "b=c"


def test_arguments_arrive_unchanged(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    arguments = (*UNUSUAL_TEXTS, "x" * 100_000, "")
    dump(ssh_hosts, tmp_path, arguments=arguments)
    for rank in range(3):
        assert (tmp_path / f"args.{rank}").read_text().split("\0")[:-1] == list(arguments)


def test_flags_reach_all_hosts(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    options = ("--log-level", "debug", "--start-timeout", "77", "-x", "OMP_NUM_THREADS=5")
    for environment in dump(ssh_hosts, tmp_path, *options):
        assert environment["FARANDOLE_LOG_LEVEL"] == "debug"
        assert environment["FARANDOLE_START_TIMEOUT"] == "77"
        assert environment["OMP_NUM_THREADS"] == "5"


def test_the_streams_stay_apart(ssh_hosts: SshHosts) -> None:
    script = "echo out; echo err >&2; echo; printf 'no end'; printf 'no end' >&2"
    job = succeeded(ssh_hosts.run("-H", "host0,host1", "sh", "-c", script))
    output = [f"[{rank}] {text}" for rank in range(2) for text in ("out", "", "no end")]
    assert sorted(job.output.splitlines()) == sorted(output)
    assert job.output.endswith("\n")
    errors = job.errors.splitlines()
    assert sorted(errors)[:4] == ["[0] err", "[0] no end", "[1] err", "[1] no end"]
    assert [line for line in errors if not line.startswith("[")] == [
        line for line in errors if line.startswith("farandole: no worker of this")
    ]


def test_long_output_is_complete(ssh_hosts: SshHosts) -> None:
    job = succeeded(ssh_hosts.run("-H", "host1,host2", "sh", "-c", f"seq -f 'n%.0f' {NUMBERS}"))
    numbers = [f"n{number}" for number in range(1, NUMBERS + 1)]
    lines = job.output.splitlines()
    for rank in range(2):
        beginning = f"[{rank}] "
        assert [line[4:] for line in lines if line.startswith(beginning)] == numbers
    assert len(lines) == 2 * NUMBERS


def test_a_long_line_is_cut_as_on_one_host(ssh_hosts: SshHosts) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' a"
    over_ssh = succeeded(ssh_hosts.run("-H", "host1", "sh", "-c", script))
    here = succeeded(run("run", "-n", "1", "sh", "-c", script))
    assert over_ssh.output == here.output


def test_the_prefix_and_the_shown_ranks(ssh_hosts: SshHosts) -> None:
    options = ("--prefix", "{rank}/{local_rank} {stream}: ", "--tag-rank", "1-2")
    script = "echo out; echo err >&2"
    job = succeeded(ssh_hosts.run("-H", "host0:2,host1:2", *options, "sh", "-c", script))
    assert sorted(job.output.splitlines()) == ["1/1 stdout: out", "2/0 stdout: out"]
    assert sorted(job.errors.splitlines())[:2] == ["1/1 stderr: err", "2/0 stderr: err"]


@pytest.mark.parametrize("prefix", ["", "--", "-x ", "[a,b]", "a'b $x "])
def test_unusual_prefixes(ssh_hosts: SshHosts, prefix: str) -> None:
    flag = ("--prefix=--",) if prefix == "--" else ("--prefix", prefix)
    job = succeeded(ssh_hosts.run("-H", "host0,host1", *flag, "sh", "-c", "echo here"))
    assert job.output == f"{prefix}here\n" * 2


@pytest.mark.parametrize("hosts", ["own:2,host1:2", "host1:1,host2:3"])
def test_the_files_of_all_ranks_are_gathered(
    ssh_hosts: SshHosts, hosts: str, tmp_path: Path
) -> None:
    script = "echo out $RANK; echo err $RANK >&2; printf '\\033\\000no end'"
    hosts = hosts.replace("own", ssh_hosts.hosts[0].v4)
    words = ("-H", hosts, "--tag-rank", "0", "--output-dir", "log", "sh", "-c", script)
    with ssh_hosts.hidden(1, tmp_path):  # so host1 has a folder of its own there
        job = succeeded(ssh_hosts.run(*words, folder=tmp_path))
        assert list(ssh_hosts.seen_on(1, tmp_path).iterdir()) == []
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
    job = succeeded(ssh_hosts.run(*words, "sh", "-c", f"seq -f 'n%.0f' {NUMBERS}"))
    expected = "".join(f"n{number}\n" for number in range(1, NUMBERS + 1))
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


def test_fewer_workers_than_slots(ssh_hosts: SshHosts) -> None:
    hosts = ("-H", "host0:2,host1:2,host2:2")
    three = by_rank(succeeded(ssh_hosts.run(*hosts, "-n", "3", "sh", "-c", SHOW_PLACE)))
    assert {rank: place["GROUP_RANK"] for rank, place in three.items()} == {0: "0", 1: "0", 2: "1"}
    assert [three[rank]["LOCAL_SIZE"] for rank in range(3)] == ["2", "2", "1"]
    one = by_rank(succeeded(ssh_hosts.run(*hosts, "-n1", "sh", "-c", SHOW_PLACE)))
    assert {rank: place["SIZE"] for rank, place in one.items()} == {0: "1"}


HOSTFILES = [
    "host0 slots=2\nhost1 slots=2 max_slots=4\n",  # Open MPI
    "# hosts\nhost0:2 # two\r\n\n  host1:2",  # Hydra
    "host0 slots=2\nroot@host1 slots=2\n",  # Horovod
    "host0\nhost1\nhost0\nhost1\n",  # one line per slot
]


@pytest.mark.parametrize("text", HOSTFILES)
def test_hostfiles(ssh_hosts: SshHosts, text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    words = ("--hostfile", "hosts", "sh", "-c", SHOW_PLACE)
    shown = by_rank(succeeded(ssh_hosts.run(*words, folder=tmp_path)))
    assert {rank: place["GROUP_RANK"] for rank, place in shown.items()} == {
        0: "0", 1: "0", 2: "1", 3: "1",
    }  # fmt: skip


def test_a_host_that_is_given_twice_has_the_sum_of_its_slots(ssh_hosts: SshHosts) -> None:
    words = ("-H", "host1,host0:2,host1", "sh", "-c", SHOW_PLACE)
    shown = by_rank(succeeded(ssh_hosts.run(*words)))
    assert [shown[rank]["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert shown[0]["LOCAL_SIZE"] == "2"


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_ipv6_only(tmp_path: Path, order: list[int]) -> None:
    with made_ssh_hosts(2, tmp_path, v6_only=True, port=2222) as ssh_hosts:
        names = ",".join(f"[{ssh_hosts.hosts[node].v6}]:2" for node in order)
        words = ("--ssh-port", "2222", "-H", names, "sh", "-c", SHOW_PLACE)
        shown = by_rank(succeeded(ssh_hosts.run(*words)))
        assert {rank: place["SIZE"] for rank, place in shown.items()} == dict.fromkeys(
            range(4), "4"
        )
        first = ssh_hosts.hosts[order[0]].v6
        assert {place["MASTER"].split("/")[0] for place in shown.values()} == {first}


@pytest.mark.parametrize("name", ["localhost", "own", "[::1]"])
def test_a_job_on_this_host_only_is_not_started_over_ssh(ssh_hosts: SshHosts, name: str) -> None:
    host = ssh_hosts.hosts[0].v4 if name == "own" else name
    script = ("sh", "-c", f"{SHOW_PLACE}; exit $RANK")
    logins = ssh_hosts.logins(0)
    over_hosts = ssh_hosts.run("-H", f"{host}:2", *script)
    here = ssh_hosts.run("-n", "2", *script)

    def without_numbers(job: Launched) -> list[str]:
        text = re.sub(r"pid \d+|MASTER=127.0.0.1/\d+", "", job.output + job.errors)
        return sorted(re.sub(r" +│", "", text).splitlines())

    assert without_numbers(over_hosts) == without_numbers(here)
    assert (over_hosts.process.returncode, here.process.returncode) == (1, 1)
    assert ssh_hosts.logins(0) == logins


def test_each_launcher_binds_its_own_workers(ssh_hosts: SshHosts) -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("there is one hardware thread only")
    words = ("--bind-to", "core", "grep", "Cpus_allowed_list", "/proc/self/status")
    job = succeeded(ssh_hosts.run("-H", "host1:2,host2:2", *words))
    shown = dict(re.findall(r"^\[(\d)\] Cpus_allowed_list:\s(\S+)", job.output, re.MULTILINE))
    # All hosts of this test have the cores of this machine.
    assert sorted(shown) == ["0", "1", "2", "3"]
    assert (shown["0"], shown["1"]) == (shown["2"], shown["3"])
    assert shown["0"] != shown["1"]


def test_the_engine_works_over_the_hosts(ssh_hosts: SshHosts) -> None:
    worker = Path(__file__).with_name("small_worker.py")
    program = (sys.executable, str(worker), "short")
    job = succeeded(ssh_hosts.run("-H", f"{ssh_hosts.hosts[0].v4}:2,host1:2", *program))
    shown = dict(re.findall(r"^\[(\d)\] (.+)", job.output, re.MULTILINE))
    assert sorted(shown) == ["0", "1", "2", "3"]
    assert len(set(shown.values())) == 1


def test_torch_distributed_finds_all_ranks(ssh_hosts: SshHosts) -> None:
    """torchrun's variables are enough for gloo, PyTorch's own backend, which connects the ranks
    without Farandole."""
    program = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "sums = torch.tensor([1.0, 10.0**dist.get_rank()])\n"
        "dist.all_reduce(sums)\n"
        "print('sums', *map(int, sums), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    interface = ("-x", "GLOO_SOCKET_IFNAME=eth0")
    job = succeeded(
        ssh_hosts.run("-H", "host1:2,host2:1", *interface, sys.executable, "-c", program)
    )
    assert sorted(re.findall(r"^\[\d\] .*", job.output, re.MULTILINE)) == [
        f"[{rank}] sums 3 111" for rank in range(3)
    ]


def test_standard_input_is_empty(ssh_hosts: SshHosts) -> None:
    job = succeeded(ssh_hosts.run("-H", "host0,host1", "sh", "-c", "wc -c; echo end"))
    assert sorted(job.output.split()) == ["0", "0", "[0]", "[0]", "[1]", "[1]", "end", "end"]


def processes_with(text: str) -> tuple[list[int], list[int]]:
    """List the processes with a text in the command line, and those with it in the environment."""
    found: tuple[list[int], list[int]] = ([], [])
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        for pids, name in zip(found, ("cmdline", "environ"), strict=True):
            with suppress(OSError):  # the process has ended meanwhile
                if text.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                    pids.append(pid)
    return found


def files_with(text: str, since: float, *folders: Path) -> list[Path]:
    """List the files below 64 MiB that contain a text and have changed at `since` or later.

    Larger files belong to other tests, which run at the same time.
    """
    found = []
    walks = itertools.chain.from_iterable(map(os.walk, folders))
    for file in (Path(folder, name) for folder, _, names in walks for name in names):
        with suppress(OSError):  # the file is gone meanwhile
            state = file.lstat()
            recent = stat.S_ISREG(state.st_mode) and state.st_mtime >= since
            if recent and state.st_size < 64 << 20 and text.encode() in file.read_bytes():
                found.append(file)
    return found


def test_values_are_shown_to_the_workers_only(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    since = time.time() - 2  # the file system may count in whole seconds
    canary = secrets.token_hex(16)
    hosts = f"{ssh_hosts.hosts[0].v4},host0,host1:2"
    with ssh_hosts.start(
        "-H", hosts, "-x", f"CANARY={canary}", "sh", "-c", WAIT, folder=tmp_path
    ) as job:
        job.read_until("waits as", times=4)
        workers = {int(pid) for pid in re.findall(r"waits as (\d+)", job.output)}
        deadline = time.monotonic() + HANG_SECONDS / 2
        while len((found := processes_with(canary))[1]) < 4 and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)  # a worker that is becoming `sleep` shows no environment
        in_words, in_environment = found
        folders = (ssh_hosts.servers.folder, tmp_path, Path("/tmp"), Path("/dev/shm"))
        files = files_with(canary, since, *folders)
        job.send(signal.SIGTERM)
        job.end()
        ssh_hosts.wait_for_end_of(job)
    assert in_words == [job.process.pid]  # the user has typed it there
    assert set(in_environment) == workers
    assert files == []
    assert canary not in job.output + job.errors
