"""Starts jobs in each way of starting, and kills a random process of each job at a random moment.

    python tests/cluster/random_kills.py --count 100 [--way ssh] [--seed 7]

After each kill, all processes of the job must end, the exit codes and the messages must say what
has happened, and nothing may be left: no process, file, or abstract socket. A job has two workers
on each of two hosts, which are network namespaces. The programs ssh, sshd, Slurm, and mpirun of
Open MPI are the real ones. With `--way ranks`, mpirun starts the workers itself, without `farandole
run`.
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
from driven import command_line_of, parent_of
from launched import CommandRun, command

from hosts import Hosts, run_command, run_in_child_process
from mpi_launchers import find_launchers, mpirun_words
from mpi_launchers import reason_if_impossible as why_no_mpi
from slurm_cluster import SlurmCluster
from slurm_cluster import reason_if_impossible as why_no_slurm
from ssh_servers import SshServers
from ssh_servers import reason_if_impossible as why_no_servers
from unpacked_packages import overlay_prefix

PORT = 4711
WORKERS = 4
PROGRAM = ["sh", "-c", "echo waits; exec sleep 1000"]
CALLING_RANK = [sys.executable, str(Path(__file__).with_name("calling_rank.py"))]
TIMEOUT_SECONDS = 300  # only a guard against hanging
# The kill comes within this multiple of the time that a job needs to start.
KILL_TIME_FACTOR = 1.5
# If a launcher is killed before it joins the job, the other launchers wait for it for this time.
START_TIMEOUT = ["--start-timeout", "15"]
POLL_SECONDS = 0.02
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
# This helper process ends the job if srun is killed. If only the helper is killed, nothing happens.
SRUN_HELPER = "shepherd of srun"
# This script runs these programs to enter a host. They then replace themselves by programs of the
# job. The script never chooses these programs as victims.
HOST_ENTRY_PROGRAMS = ("ip", "sh", "mount", "unshare", "hostname", "env")
SERVICES = ("munged", "slurmctld", "slurmd")
# If Open MPI is killed, it leaves its folder in /tmp. We cannot change this.
FOREIGN_FILES = ("ompi.",)


@dataclass(frozen=True)
class JobProcess:
    """A process of a job."""

    node: int  # the node on which it runs
    pid: int
    kind: str
    words: list[str] = field(compare=False)


@dataclass
class StartMethod:
    """One way to start jobs: the hosts, and the commands that start a job on them."""

    way: str
    hosts: Hosts
    folder: Path
    names: list[str]
    start_words: Callable[[random.Random], list[list[str]]]
    services: set[int]
    wait_until_ready: Callable[[], None] = lambda: None
    cancel_jobs: Callable[[], None] | None = None  # ends a job as a user of Slurm does

    def start(self, generator: random.Random) -> list[CommandRun]:
        return [
            CommandRun(
                *words[1:], program=words[0], environment=ENVIRONMENT, seconds=TIMEOUT_SECONDS
            )
            for words in self.start_words(generator)
        ]

    def processes(self) -> list[JobProcess]:
        """List the processes of the job on all hosts."""
        job_processes = []
        for node, host in enumerate(self.hosts):
            for pid in host.processes():
                words = command_line_of(pid)
                if pid not in self.services and words and Path(words[0]).name not in SERVICES:
                    job_processes.append(JobProcess(node, pid, kind_of(pid, words), words))
        return job_processes

    def kill_random_process(self, generator: random.Random) -> JobProcess:
        """Kill a process of the job: choose a random kind, and then a random process of this
        kind."""
        while True:
            processes = [
                p for p in self.processes() if p.kind not in (SRUN_HELPER, *HOST_ENTRY_PROGRAMS)
            ]
            if not processes:
                time.sleep(POLL_SECONDS)
                continue
            kind = generator.choice(sorted({process.kind for process in processes}))
            victim = generator.choice([p for p in processes if p.kind == kind])
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                return victim

    def wait_until_all_ended(self, *, ignored_kinds: Sequence[str] = ()) -> None:
        """Wait for the end of the processes of the job, except those of `ignored_kinds`."""
        while any(process.kind not in ignored_kinds for process in self.processes()):
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
    """Return the kind of a process, that is, its role in the job."""
    program = Path(words[0]).name
    if program == "srun" and command_line_of(parent_of(pid)) == words:
        return SRUN_HELPER
    if program == "sleep" or words == PROGRAM:
        return "worker"
    if program != "farandole":
        return words[0].split(":")[0] if ": " in words[0] else program  # such as "sshd: root"
    if "-H" in words:
        return "driver"
    parents = 0
    while (pid := parent_of(pid)) and is_launcher_process(command_line_of(pid)):
        parents += 1
    # A worker is a copy of its agent until it starts its program.
    return ("foreground", "agent", "worker")[min(parents, 2)]


def is_launcher_process(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name == "farandole" and "-H" not in words


def check_end(start_method: StartMethod, victim: JobProcess, jobs: list[CommandRun]) -> None:
    """Check that the exit codes and the messages say what has happened to the killed process."""
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
    elif start_method.way == "fork":
        assert f"agent (pid {victim.pid})" in errors, "no cause"
    elif victim.kind in ("foreground", "agent"):
        host = start_method.hosts[victim.node].v4
        names = (start_method.names[victim.node], host, f"node {victim.node}")
        assert any(name in errors for name in names), "the host is not named"
    elif start_method.way == "ssh" and victim.kind in ("ssh", "sshd"):
        names = [name for name in start_method.names if name in victim.words]
        assert (names or [start_method.names[victim.node]])[0] in errors, "the host is not named"
    else:
        assert errors, "no message"


def start_and_kill_job(start_method: StartMethod, seed: int, seconds: float) -> str:
    """Start a job, kill one of its processes at a random moment within `seconds`, and check how the
    job ends.

    Return the kind of the killed process.
    """
    start_method.wait_until_ready()
    generator = random.Random(seed)
    delay = generator.uniform(0, seconds)
    with ExitStack() as stack:
        stack.callback(start_method.end_all)
        jobs = [stack.enter_context(job) for job in start_method.start(generator)]
        time.sleep(delay)
        victim = start_method.kill_random_process(generator)
        kill_time = time.monotonic()
        print(
            f"{start_method.way}, seed {seed}: {victim.kind} {victim.pid} on "
            f"{start_method.names[victim.node]} killed after {delay:.2f} s",
            end="",
            flush=True,
        )
        signal.alarm(TIMEOUT_SECONDS)
        try:
            if victim.kind == "slurmstepd" and start_method.cancel_jobs:
                # If this process ends, srun does not notice it, and waits until it is canceled.
                start_method.wait_until_all_ended(ignored_kinds=("srun", SRUN_HELPER))
                start_method.cancel_jobs()
            for job in jobs:
                job.end()
            start_method.wait_until_all_ended()
            print(
                f", ended after {time.monotonic() - kill_time:.2f} s with exit codes "
                f"{[job.process.returncode for job in jobs]}"
            )
            check_end(start_method, victim, jobs)
            assert start_method.leftovers() == []
        except (AssertionError, TimeoutError) as failure:
            remaining = [(p.kind, p.pid) for p in start_method.processes()]
            texts = "\n".join(f"{job.output}{job.errors}" for job in jobs)
            if start_method.cancel_jobs:
                start_method.cancel_jobs()
            raise AssertionError(
                f"{failure}; processes that are left: {remaining}\n{texts}"
            ) from None
    return victim.kind


def start_seconds(start_method: StartMethod) -> float:
    """Start a job without a kill, and return how long all workers needed to start."""
    with ExitStack() as stack:
        stack.callback(start_method.end_all)
        start_time = time.monotonic()
        jobs = [stack.enter_context(job) for job in start_method.start(random.Random(0))]
        for job in jobs:
            job.read_until("waits", times=WORKERS // len(jobs))
        seconds = time.monotonic() - start_time
        for job in jobs:
            job.send(signal.SIGTERM)
        for job in jobs:
            job.end()
        start_method.wait_until_all_ended()
    assert start_method.leftovers() == []
    return seconds


def start_and_kill_jobs(
    start_method: StartMethod, count: int, seed: int
) -> tuple[Counter[str], list[str]]:
    """Start and kill `count` jobs. Return the number of kills by the kind of the process, and the
    failures."""
    seconds = start_seconds(start_method)
    kill_counts: Counter[str] = Counter()
    failures = []
    for number in range(count):
        try:
            kill_counts[
                start_and_kill_job(start_method, seed + number, seconds * KILL_TIME_FACTOR)
            ] += 1
        except AssertionError as failure:
            failures.append(f"{start_method.way}, seed {seed + number}: {failure}")
            print(f"\n{failures[-1]}")
    return kill_counts, failures


# The ways to start a job.


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
def make_ssh_method(way: str, folder: Path) -> Iterator[StartMethod]:
    """Make the start method for any way except Slurm, with hosts that have SSH servers."""
    launchers = find_launchers() if way in ("mpirun", "ranks") else None
    with (
        hosts_with_own_files(folder) as hosts,
        SshServers(hosts, folder / "ssh", usr_overlay=launchers) as servers,
    ):
        secret = ["--secret", str(folder / "secret")]
        endpoint = ["--join", hosts[0].endpoint(PORT)]
        enter_folder = ["env", "-C", str(folder / "work")]
        run = [command(), "run"]

        def fork_commands(_: random.Random) -> list[list[str]]:
            return [hosts[0].command(*enter_folder, *run, "-n", str(WORKERS), *PROGRAM)]

        def ssh_commands(generator: random.Random) -> list[list[str]]:
            # The driver reaches host0 over ssh by its name, and directly by its address.
            first_host = generator.choice(["host0", hosts[0].v4])
            options = ["-H", f"{first_host}:2,host1:2", "-i", str(servers.identity)]
            return [hosts[0].command(*enter_folder, *run, *options, *PROGRAM)]

        def join_commands(_: random.Random) -> list[list[str]]:
            options = [*endpoint, *secret, *START_TIMEOUT, "--nodes", "2", "-n", "2"]
            commands = [
                [*overlay_prefix(name, None), *enter_folder, *run, *options, "--node", str(node)]
                for node, name in enumerate(servers.names)
            ]
            return [h.command(*c, *PROGRAM) for h, c in zip(hosts, commands, strict=True)]

        def mpirun_commands(_: random.Random) -> list[list[str]]:
            exported = [word for name in ENVIRONMENT for word in ("-x", name)]
            start_words = [
                *overlay_prefix("host0", launchers),
                *enter_folder,
                *mpirun_words(servers, *exported),
            ]
            return [hosts[0].command(*start_words, *run, *endpoint, *secret, "-n", "2", *PROGRAM)]

        def ranks_commands(_: random.Random) -> list[list[str]]:
            start_words = [
                *overlay_prefix("host0", launchers),
                *enter_folder,
                *mpirun_words(servers, per_host=2),
            ]
            variables = [
                f"FARANDOLE_SECRET={folder / 'secret'}",
                f"FARANDOLE_JOB_STORE={hosts[0].endpoint(PORT)}",
                f"FARANDOLE_START_TIMEOUT={START_TIMEOUT[1]}",
            ]
            return [hosts[0].command(*start_words, "env", *variables, *CALLING_RANK)]

        start_functions = {
            "fork": fork_commands,
            "ssh": ssh_commands,
            "join": join_commands,
            "mpirun": mpirun_commands,
            "ranks": ranks_commands,
        }
        services = {servers.pid(name) for name in servers.names}
        yield StartMethod(way, hosts, folder, servers.names, start_functions[way], services)


@contextmanager
def make_slurm_method(way: str, folder: Path) -> Iterator[StartMethod]:
    with (
        hosts_with_own_files(folder) as hosts,
        SlurmCluster(hosts, folder / "slurm", settings=["KillWait=5"]) as slurm,
    ):
        words = ["srun", "--nodes=2", "--ntasks-per-node=1", f"--chdir={folder / 'work'}"]
        words += [command(), "run", *START_TIMEOUT, "--secret", str(folder / "secret")]
        words += ["-n", "2", *PROGRAM]
        services = {pid for host in hosts for pid in host.processes()}
        commands = [slurm.command(*words)]

        def cancel_jobs() -> None:
            subprocess.run(slurm.command("scancel", "--user=root"), check=True)

        def wait_until_ready() -> None:
            cancel_jobs()  # if srun was killed before its job began, Slurm keeps the allocation
            slurm.wait_until_idle()

        yield StartMethod(
            way,
            hosts,
            folder,
            slurm.names,
            lambda _: commands,
            services,
            wait_until_ready,
            cancel_jobs,
        )


WAYS = ("fork", "ssh", "join", "slurm", "mpirun", "ranks")


def reason_if_impossible(way: str) -> str:
    """Return why jobs cannot be started in this way here, or an empty text if they can."""
    if command().startswith("/tmp/"):
        return "the hosts have their own /tmp, and the command is in /tmp"
    if way == "slurm":
        return why_no_slurm()
    return why_no_servers() or (why_no_mpi() if way in ("mpirun", "ranks") else "")


@contextmanager
def make_start_method(way: str) -> Iterator[StartMethod]:
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/var/tmp"))
    # SlurmCluster writes its files there.
    previous_folder, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        subprocess.run([command(), "secret", str(folder / "secret")], check=True)
        with (make_slurm_method if way == "slurm" else make_ssh_method)(
            way, folder
        ) as start_method:
            yield start_method
    finally:
        tempfile.tempdir = previous_folder
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
            if reason := reason_if_impossible(way):
                raise SystemExit(reason)
            with make_start_method(way) as start_method:
                kinds, failures = start_and_kill_jobs(start_method, arguments.count, arguments.seed)
            all_failures += failures
            print(f"{way}: {arguments.count} kills, {len(failures)} failures; {dict(kinds)}")
        for failure in all_failures:
            print(failure.splitlines()[0])
        return int(bool(all_failures))

    return run_in_child_process(run)


if __name__ == "__main__":
    sys.exit(main())
