"""Starts jobs and kills a random process of each at a random moment, for each way of starting.

    python tests/cluster/random_kills.py --count 100 [--way ssh] [--seed 7]

After each kill, all processes of the job must end, the exit codes and the messages must say what
has happened, and nothing may be left: no process, file, or abstract socket. A job has two workers
on each of two hosts, which are network namespaces. All programs are real: ssh, sshd, Slurm, and
mpirun of Open MPI. In the way `ranks`, mpirun starts the workers itself, without `farandole run`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from driven import parent_of, process_words
from launched import Launched, command

from hosts import Hosts, in_guarded_process, run_command
from mpi_launchers import find_launchers, mpirun_words
from mpi_launchers import why_impossible as why_no_mpi
from slurm_cluster import SlurmCluster
from slurm_cluster import why_impossible as why_no_slurm
from ssh_servers import SshServers
from ssh_servers import why_impossible as why_no_servers
from unpacked_packages import words_to_enter

PORT = 4711
WORKERS = 4
PROGRAM = ["sh", "-c", "echo waits; exec sleep 1000"]
CALLING_RANK = [sys.executable, str(Path(__file__).with_name("calling_rank.py"))]
END_SECONDS = 300  # a guard against hanging
# Kills come until this multiple of the time that the job needs to start.
MOMENTS = 1.5
# If a node is killed before it has reached the others, the others wait for it for this time.
START_TIMEOUT = ["--start-timeout", "15"]
POLL_SECONDS = 0.02
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
# This process of srun ends the job if srun is killed. A kill of it alone changes nothing.
SHEPHERD = "shepherd of srun"
# Programs with which this script enters a host. They become the programs of the job.
ENTERING = ("ip", "sh", "mount", "unshare", "hostname", "env")
SERVICES = ("munged", "slurmctld", "slurmd")
# Open MPI itself leaves its folder in /tmp if it is killed.
FOREIGN_FILES = ("ompi.",)


@dataclass(frozen=True)
class Victim:
    """A process of a job."""

    node: int  # the node on which it runs
    pid: int
    kind: str
    words: list[str] = field(compare=False)


@dataclass
class Environment:
    """Hosts on which jobs are started in one way, and the commands that start a job."""

    way: str
    hosts: Hosts
    folder: Path
    names: list[str]
    start_words: Callable[[random.Random], list[list[str]]]
    services: set[int]
    wait_until_ready: Callable[[], None] = lambda: None
    cancel: Callable[[], None] | None = None  # ends a job as its user does

    def start(self, chooser: random.Random) -> list[Launched]:
        return [
            Launched(*words[1:], program=words[0], environment=ENVIRONMENT, seconds=END_SECONDS)
            for words in self.start_words(chooser)
        ]

    def processes(self) -> list[Victim]:
        """List the processes of the job on all hosts."""
        found = []
        for node, host in enumerate(self.hosts):
            for pid in host.processes():
                words = process_words(pid)
                if pid not in self.services and words and Path(words[0]).name not in SERVICES:
                    found.append(Victim(node, pid, kind_of(pid, words), words))
        return found

    def kill_one(self, chooser: random.Random) -> Victim:
        """Kill a random process of the job: first choose its kind, then one of this kind."""
        while True:
            processes = [p for p in self.processes() if p.kind not in (SHEPHERD, *ENTERING)]
            if not processes:
                time.sleep(POLL_SECONDS)
                continue
            kind = chooser.choice(sorted({process.kind for process in processes}))
            victim = chooser.choice([p for p in processes if p.kind == kind])
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                return victim

    def wait_until_all_ended(self, *, without: Sequence[str] = ()) -> None:
        """Wait for the end of all processes of the job, except those of the kinds `without`."""
        while any(process.kind not in without for process in self.processes()):
            time.sleep(POLL_SECONDS)

    def end_all(self) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """List the files and abstract sockets that exist on the hosts."""
        folders = [self.folder / "work"]
        folders += [folder for host in self.hosts for folder in host.shown.values()]
        files = [
            str(path)
            for folder in folders
            for path in folder.iterdir()
            if not path.name.startswith(FOREIGN_FILES)
        ]
        return files + [name for host in self.hosts for name in abstract_sockets(host.namespace)]


def abstract_sockets(namespace: str) -> list[str]:
    table = run_command("ip", "netns", "exec", namespace, "cat", "/proc/net/unix")
    names = [line.split()[7] for line in table.splitlines()[1:] if len(line.split()) > 7]
    return [name for name in names if name.startswith("@")]


def kind_of(pid: int, words: list[str]) -> str:
    """Say which part of a job a process is."""
    program = Path(words[0]).name
    if program == "srun" and process_words(parent_of(pid)) == words:
        return SHEPHERD
    if program == "sleep" or words == PROGRAM:
        return "worker"
    if program != "farandole":
        return words[0].split(":")[0] if ": " in words[0] else program  # such as "sshd: root"
    if "-H" in words:
        return "driver"
    parents = 0
    while (pid := parent_of(pid)) and is_launcher(process_words(pid)):
        parents += 1
    # A worker is a copy of its agent until it starts its program.
    return ("foreground", "agent", "worker")[min(parents, 2)]


def is_launcher(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name == "farandole" and "-H" not in words


def check(environment: Environment, victim: Victim, jobs: list[Launched]) -> None:
    """Check the exit codes and what the messages say about the killed process."""
    errors = "".join(job.errors for job in jobs)
    for job in jobs:
        if job.process.pid == victim.pid:
            assert job.process.returncode == -signal.SIGKILL
        else:
            assert job.process.returncode > 0, f"exit code {job.process.returncode}"
    if victim.kind == "worker":
        assert f"pid {victim.pid}) was killed by signal 9 (SIGKILL)" in errors, "no cause"
    elif victim.pid in [job.process.pid for job in jobs]:
        return
    elif environment.way == "fork":
        assert f"agent (pid {victim.pid})" in errors, "no cause"
    elif victim.kind in ("foreground", "agent"):
        host = environment.hosts[victim.node].v4
        names = (environment.names[victim.node], host, f"node {victim.node}")
        assert any(name in errors for name in names), "the host is not named"
    elif environment.way == "ssh" and victim.kind in ("ssh", "sshd"):
        names = [name for name in environment.names if name in victim.words]
        assert (names or [environment.names[victim.node]])[0] in errors, "the host is not named"
    else:
        assert errors, "no message"


def started_and_killed(environment: Environment, seed: int, seconds: float) -> str:
    """Start a job, kill one process of it within these seconds, and check how the job ends.

    Return the kind of the killed process.
    """
    environment.wait_until_ready()
    chooser = random.Random(seed)
    delay = chooser.uniform(0, seconds)
    with ExitStack() as stack:
        stack.callback(environment.end_all)
        jobs = [stack.enter_context(job) for job in environment.start(chooser)]
        time.sleep(delay)
        victim = environment.kill_one(chooser)
        began = time.monotonic()
        print(
            f"{environment.way}, seed {seed}: {victim.kind} {victim.pid} on "
            f"{environment.names[victim.node]} killed after {delay:.2f} s",
            end="",
            flush=True,
        )
        signal.alarm(END_SECONDS)
        try:
            if victim.kind == "slurmstepd" and environment.cancel:
                # srun does not notice the end of this process, and waits until it is canceled.
                environment.wait_until_all_ended(without=("srun", SHEPHERD))
                environment.cancel()
            for job in jobs:
                job.end()
            environment.wait_until_all_ended()
            print(
                f", ended after {time.monotonic() - began:.2f} s with exit codes "
                f"{[job.process.returncode for job in jobs]}"
            )
            check(environment, victim, jobs)
            assert environment.leftovers() == []
        except (AssertionError, TimeoutError) as failure:
            left = [(p.kind, p.pid) for p in environment.processes()]
            texts = "\n".join(f"{job.output}{job.errors}" for job in jobs)
            if environment.cancel:
                environment.cancel()
            raise AssertionError(f"{failure}; processes that are left: {left}\n{texts}") from None
    return victim.kind


def start_seconds(environment: Environment) -> float:
    """Start a job without a kill, and return how long all workers needed to start."""
    with ExitStack() as stack:
        stack.callback(environment.end_all)
        began = time.monotonic()
        jobs = [stack.enter_context(job) for job in environment.start(random.Random(0))]
        for job in jobs:
            job.read_until("waits", times=WORKERS // len(jobs))
        seconds = time.monotonic() - began
        for job in jobs:
            job.send(signal.SIGTERM)
        for job in jobs:
            job.end()
        environment.wait_until_all_ended()
    assert environment.leftovers() == []
    return seconds


def killed_many(environment: Environment, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Start and kill `count` jobs; return how many of which kind, and the failures."""
    seconds = start_seconds(environment)
    kinds: Counter[str] = Counter()
    failures = []
    for number in range(count):
        try:
            kinds[started_and_killed(environment, seed + number, seconds * MOMENTS)] += 1
        except AssertionError as failure:
            failures.append(f"{environment.way}, seed {seed + number}: {failure}")
            print(f"\n{failures[-1]}")
    return kinds, failures


# The ways of starting.


@contextmanager
def hosts_with_own_files(folder: Path) -> Iterator[Hosts]:
    """Make two hosts, each with its own /tmp and /dev/shm, so that other programs of this machine
    write nothing there."""
    (folder / "work").mkdir()
    with Hosts(2) as hosts:
        for node, host in enumerate(hosts):
            for path in ("/tmp", "/dev/shm"):
                (shown := folder / f"{node}{path.replace('/', '-')}").mkdir()
                host.show(shown, path)
        yield hosts


@contextmanager
def over_ssh(way: str, folder: Path) -> Iterator[Environment]:
    """Make an environment for each way except Slurm. All of them have SSH servers."""
    launchers = find_launchers() if way in ("mpirun", "ranks") else None
    with (
        hosts_with_own_files(folder) as hosts,
        SshServers(hosts, folder / "ssh", over_usr=launchers) as servers,
    ):
        secret = ["--secret", str(folder / "secret")]
        endpoint = ["--join", hosts[0].endpoint(PORT)]
        here = ["env", "-C", str(folder / "work")]
        run = [command(), "run"]

        def fork(_: random.Random) -> list[list[str]]:
            return [hosts[0].command(*here, *run, "-n", str(WORKERS), *PROGRAM)]

        def ssh(chooser: random.Random) -> list[list[str]]:
            first = chooser.choice(["host0", hosts[0].v4])  # over ssh, or directly
            options = ["-H", f"{first}:2,host1:2", "-i", str(servers.identity)]
            return [hosts[0].command(*here, *run, *options, *PROGRAM)]

        def join(_: random.Random) -> list[list[str]]:
            options = [*endpoint, *secret, *START_TIMEOUT, "--nodes", "2", "-n", "2"]
            commands = [
                [*words_to_enter(name, None), *here, *run, *options, "--node", str(node)]
                for node, name in enumerate(servers.names)
            ]
            return [h.command(*c, *PROGRAM) for h, c in zip(hosts, commands, strict=True)]

        def mpirun(_: random.Random) -> list[list[str]]:
            passed_on = [word for name in ENVIRONMENT for word in ("-x", name)]
            start = [*words_to_enter("host0", launchers), *here, *mpirun_words(servers, *passed_on)]
            return [hosts[0].command(*start, *run, *endpoint, *secret, "-n", "2", *PROGRAM)]

        def ranks(_: random.Random) -> list[list[str]]:
            start = [*words_to_enter("host0", launchers), *here, *mpirun_words(servers, per_host=2)]
            given = [
                f"FARANDOLE_SECRET={folder / 'secret'}",
                f"FARANDOLE_JOB_STORE={hosts[0].endpoint(PORT)}",
                f"FARANDOLE_START_TIMEOUT={START_TIMEOUT[1]}",
            ]
            return [hosts[0].command(*start, "env", *given, *CALLING_RANK)]

        starts = {"fork": fork, "ssh": ssh, "join": join, "mpirun": mpirun, "ranks": ranks}
        services = {servers.pid(name) for name in servers.names}
        yield Environment(way, hosts, folder, servers.names, starts[way], services)


@contextmanager
def by_slurm(way: str, folder: Path) -> Iterator[Environment]:
    with (
        hosts_with_own_files(folder) as hosts,
        SlurmCluster(hosts, folder / "slurm", settings=["KillWait=5"]) as slurm,
    ):
        words = ["srun", "--nodes=2", "--ntasks-per-node=1", f"--chdir={folder / 'work'}"]
        words += [command(), "run", *START_TIMEOUT, "--secret", str(folder / "secret")]
        words += ["-n", "2", *PROGRAM]
        services = {pid for host in hosts for pid in host.processes()}
        commands = [slurm.command(*words)]

        def cancel() -> None:
            subprocess.run(slurm.command("scancel", "--user=root"), check=True)

        def wait_until_ready() -> None:
            cancel()  # if srun was killed before its job began, its allocation remains
            slurm.wait_until_idle()

        yield Environment(
            way,
            hosts,
            folder,
            slurm.names,
            lambda _: commands,
            services,
            wait_until_ready,
            cancel,
        )


WAYS = ("fork", "ssh", "join", "slurm", "mpirun", "ranks")


def why_impossible(way: str) -> str:
    """Say why jobs cannot be started in this way here; return an empty text if they can."""
    if command().startswith("/tmp/"):
        return "the hosts have their own /tmp, and the command is in /tmp"
    if way == "slurm":
        return why_no_slurm()
    return why_no_servers() or (why_no_mpi() if way in ("mpirun", "ranks") else "")


@contextmanager
def made_environment(way: str) -> Iterator[Environment]:
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/var/tmp"))
    before, tempfile.tempdir = tempfile.tempdir, str(folder)  # for what SlurmCluster writes
    try:
        subprocess.run([command(), "secret", str(folder / "secret")], check=True)
        with (by_slurm if way == "slurm" else over_ssh)(way, folder) as environment:
            yield environment
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="of kills for each way")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--seed", type=int, default=1, help="of the first kill; then it is counted")
    arguments = parser.parse_args()

    def run() -> int:
        all_failures = []
        for way in arguments.way or WAYS:
            if reason := why_impossible(way):
                raise SystemExit(reason)
            with made_environment(way) as environment:
                kinds, failures = killed_many(environment, arguments.count, arguments.seed)
            all_failures += failures
            print(f"{way}: {arguments.count} kills, {len(failures)} failures; {dict(kinds)}")
        for failure in all_failures:
            print(failure.splitlines()[0])
        return int(bool(all_failures))

    return in_guarded_process(run)


if __name__ == "__main__":
    sys.exit(main())
