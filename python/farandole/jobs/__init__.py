"""Call a function on several workers, from a script, a notebook or a prompt.

`run` waits for the results. `launch_workers` returns at once; use `await_workers` and
`stop_workers` with it. The script needs no `if __name__ == "__main__"`, and the function may be
defined anywhere, also interactively. The function and its results are pickled (by cloudpickle).

Pickles are sent on socket pairs. Only this process, its launcher, its workers, and their forked
children hold an end of a pair. The sockets have no port, name or file, and no argument or
environment variable contains any of the data. So a process that does not descend from this process
cannot send a function or see a result. Data for workers on other hosts goes through the ssh
connections to the launchers there. Unpickling runs code that the other side chooses; both sides
belong to the same user.

When this process ends for any reason, its workers are ended too.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

import cloudpickle

from farandole import arguments
from farandole.errors import CallError
from farandole.jobs.elastic_jobs import ElasticArguments, results_of
from farandole.jobs.host_discovery import HostDiscovery, ListHosts
from farandole.jobs.html_table import html_table
from farandole.jobs.job_hosts import JobHosts
from farandole.jobs.launched_job import JobPlan, LaunchedJob
from farandole.jobs.launched_worker import Worker

Result = TypeVar("Result")

_FUNCTION_WORKER_ARGUMENTS = ("-m", "farandole.jobs.function_worker")
# The launcher kills workers that still run this many seconds after a signal to end the job.
GRACE_SECONDS_MAX = 30
_SAME_SIGNAL_SECONDS = 0.6  # the launcher ignores a signal that repeats within 0.5 s


# size waiver: each argument is a choice of the user
def run(
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    n: int | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    ssh_accept_new_hosts: bool = False,
    env: Mapping[str, str] | None = None,
    prefix: str = "[{rank}] ",
    output_dir: str | os.PathLike[str] | None = None,
    start_timeout: int | None = None,
    executable: str | os.PathLike[str] | None = None,
    min_workers: int | None = None,
    max_workers: int | None = None,
    discover_hosts: str | os.PathLike[str] | ListHosts | None = None,
    slots_per_host: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    elastic_timeout: int | None = None,
) -> list[Result]:
    """Call `fn(*args, **kwargs)` on n workers of this host or of other hosts, and return the list
    of their results by rank.

    Within fn, init() joins the job as under `farandole run`. The workers' output goes to sys.stdout
    and sys.stderr, even if a notebook has replaced these; the launcher's messages go to sys.stderr.
    Blocks until all workers have ended. If one fails, the others are ended. An exception in this
    process, such as KeyboardInterrupt after Ctrl-C, also ends the workers. Large NumPy arrays in
    results are sent without copying them into a pickle.

    With min_workers, the job is elastic: if a worker fails, the others go on, and a new worker
    calls fn, too. Such a function must keep its state with hvd.elastic. The list then has the
    results of the workers in the last group, in the order of their ranks in this group. So its
    length may differ from n.

    Args:
        fn: The function. It may be defined anywhere, also interactively.
        args: Positional arguments of fn.
        kwargs: Keyword arguments of fn.
        n: The number of workers. The default is 1; if hosts are given, the default is the number of
            their slots.
        hosts: The hosts on which the workers run, and how many workers each host can have, such as
            "host1:4,host2:4". Hosts other than this one are reached over ssh.
        hostfile: The path of a file with the hosts, instead of `hosts`.
        ssh_port: The port of ssh on the hosts.
        ssh_identity_file: The path of the private key for ssh.
        ssh_accept_new_hosts: Whether ssh accepts the keys of hosts that it does not know yet.
        env: Environment variables for the workers. They override the variables of this process, but
            not the variables that the launcher sets, such as RANK.
        prefix: Text before every line of a worker's output; "{rank}" stands for its rank.
        output_dir: A folder for files with the output of each rank.
        start_timeout: How many seconds init() waits for other ranks, and how many the launcher
            waits for a host.
        executable: Another Python, which must have the packages that fn needs. All hosts must have
            it at the same path. The default is the Python of this process.
        min_workers: Makes the job elastic: the job goes on as long as at least `min_workers`
            workers are left.
        max_workers: Elastic jobs: the largest number of workers, even if more hosts join the job.
        discover_hosts: Elastic jobs: the source of the list of hosts, instead of `hosts`. It is a
            function that returns hosts and slots, such as {"host1": 4}, or a list such as
            ["host1:4"]. Or it is a command or the path of a script that writes one host per line.
            It is called about once a second; a function is called in a thread of this process. New
            hosts join the job, and hosts that are no longer listed leave it. The job starts when
            there are n slots, by default min_workers.
        slots_per_host: Elastic jobs: the slots of hosts that are listed without a number.
        reset_limit: Elastic jobs: how often the group may be formed again before the job ends.
        cooldown_range: Elastic jobs: the seconds until a failed worker is replaced, such as (1,
            60). The time begins with the first number and doubles with each failure, up to the
            second number.
        elastic_timeout: Elastic jobs: seconds that the workers wait until there are min_workers.

    Raises:
        WorkerError: A worker has failed, or its result cannot be pickled. The error names the
            rank that failed first, its exception and its traceback. In an elastic job, it is raised
            only if the job has failed, and its `rank` is the worker's slot.
        CallError: An argument is wrong. CallError is also a ValueError.
        FarandoleError: A limit of the system was reached, or an elastic job could not go on, for
            example because of the reset_limit. All these errors are RuntimeErrors.
    """
    flags = [f"--prefix={prefix}"] if prefix else ["--prefix", ""]
    flags += [] if output_dir is None else [f"--output-dir={os.fspath(output_dir)}"]
    discovery = None if discover_hosts is None else HostDiscovery(discover_hosts)
    job_hosts = JobHosts(
        hosts, hostfile, ssh_port, ssh_identity_file, ssh_accept_new_hosts, discovery
    )
    elastic_arguments = ElasticArguments(
        min_workers,
        max_workers,
        slots_per_host,
        reset_limit,
        cooldown_range,
        elastic_timeout,
        discover_hosts,
    )
    settings = _Settings(env, start_timeout, executable, job_hosts, elastic_arguments)
    workers = 1 if n is None and not job_hosts.are_given() else n
    try:
        job = _function_job((fn, args, kwargs), workers, settings, flags)
        _show_until_end(job, may_start_late=discovery is not None)
    finally:
        if discovery is not None:
            discovery.stop()
    if elastic_arguments.is_elastic():
        return results_of(job)
    results = [worker.result for worker in job.plan.workers]
    failed_workers = [worker for worker in job.plan.workers if worker.failure is not None]
    failed_workers.sort(
        key=lambda worker: (worker.rank, worker.pid) != job.first_failed_rank_and_pid
    )
    if failed_workers:
        raise failed_workers[0].failure  # type: ignore[misc]
    return results


def _show_until_end(job: LaunchedJob, may_start_late: bool) -> None:
    """Start the job, and show its output. `may_start_late` says whether the first worker may have
    to wait for a host."""
    try:
        if may_start_late:
            job.start_and_show()
        else:
            job.start()
            job.show()
    except BaseException as error:
        _end_after_error(job, error)
        raise


class Workers(Sequence[Worker]):
    """The workers of a job by rank, as launch_workers() returns them. The list prints as a table;
    notebooks show it as an HTML table."""

    def __init__(self, job: LaunchedJob) -> None:
        self._job = job

    def __len__(self) -> int:
        return len(self._job.plan.workers)

    @overload
    def __getitem__(self, index: int) -> Worker: ...
    @overload
    def __getitem__(self, index: slice) -> list[Worker]: ...
    def __getitem__(self, index: int | slice) -> Worker | list[Worker]:
        return self._job.plan.workers[index]

    @property
    def messages(self) -> str:
        """The launcher's messages so far, such as the first cause of a failure, or a line that says
        which rank waits for which."""
        return self._job.messages.text()

    def __repr__(self) -> str:
        lines = [self._title()]
        hosts = self._hosts()
        # For a job on one host, only the title has the name of the host.
        width = max(map(len, ["host", *hosts])) + 2 if len(hosts) > 1 else 0
        lines.append(f"rank  {'host'[:width]:{width}}    pid  state     exit code")
        for worker in self:
            code = "" if worker.exit_code is None else str(worker.exit_code)
            host = worker.address if width else ""
            columns = f"{worker.rank:4}  {host:{width}}{worker.pid or '':7}"
            lines.append(f"{columns}  {worker.state:8}  {code}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(self._title(), self)

    def _title(self) -> str:
        hosts = ", ".join(self._hosts())
        return f"{len(self)} workers on {hosts}, launcher {self._job.launcher_pid}"

    def _hosts(self) -> list[str]:
        return list(dict.fromkeys(worker.address for worker in self))


class Outcomes(list[Any]):
    """The list that await_workers() returns. Notebooks show it as an HTML table. The table has the
    states of the workers at the time when await_workers() returned."""

    def __init__(self, outcomes: Iterable[Any], workers: Workers) -> None:
        super().__init__(outcomes)
        self._html = workers._repr_html_()

    def _repr_html_(self) -> str:
        return self._html

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Copy and pickle as a plain list."""
        return list, (list(self),)


# size waiver: each argument is a choice of the user
def launch_workers(
    n: int | None = None,
    target: Callable[..., Any] | str | os.PathLike[str] | Sequence[str] = (),
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    ssh_accept_new_hosts: bool = False,
    env: Mapping[str, str] | None = None,
    start_timeout: int | None = None,
    executable: str | os.PathLike[str] | None = None,
) -> Workers:
    """Start n workers on this host or on other hosts as one job. Return the list of workers when
    the first worker runs.

    The workers run until they are done, one of them fails, stop_workers() is called, or this
    process ends. Each one has `rank`, `address` (its host), `pid`, `state` ("starting", "running",
    "done", "failed", "stopped"), `exit_code`, its last MiB of output (`stdout`, `stderr`, and
    `output` for both), and in the end its `result` or `failure`. The launcher's messages are in
    `messages` of the list.

    Args:
        n: The number of workers. If hosts are given, it may be None: then all of their slots get a
            worker.
        target: A function, the path of a Python script, or a list of a program and its arguments.
        args: Arguments of the function, the script or the program.
        kwargs: Keyword arguments of the function.
        hosts: The hosts on which the workers run, and how many workers each host can have, such as
            "host1:4,host2:4". Hosts other than this one are reached over ssh.
        hostfile: The path of a file with the hosts, instead of `hosts`.
        ssh_port: The port of ssh on the hosts.
        ssh_identity_file: The path of the private key for ssh.
        ssh_accept_new_hosts: Whether ssh accepts the keys of hosts that it does not know yet.
        env: Environment variables for the workers. They override the variables of this process, but
            not the variables that the launcher sets, such as RANK.
        start_timeout: How many seconds init() waits for other ranks, and how many the launcher
            waits for a host.
        executable: Another Python, which must have the packages that the function needs. All hosts
            must have it at the same path. The default is the Python of this process.

    Raises:
        CallError: An argument is wrong.
        FarandoleError: A limit of the system was reached.
    """
    job_hosts = JobHosts(hosts, hostfile, ssh_port, ssh_identity_file, ssh_accept_new_hosts)
    settings = _Settings(env, start_timeout, executable, job_hosts, ElasticArguments())
    if callable(target):
        job = _function_job((target, args, kwargs), n, settings, None)
    else:
        job = _script_job(target, args, kwargs, n, settings)
    try:
        job.start()
    except BaseException:
        job.end(signal.SIGTERM)
        raise
    return Workers(job)


def await_workers(workers: Workers, timeout: float | None = None) -> Outcomes:
    """Wait until all workers have ended, and return the outcome of each by rank.

    Ctrl-C ends the wait, but not the workers.

    Args:
        workers: The list from launch_workers().
        timeout: Seconds to wait at most; None waits without a limit.

    Returns:
        For each worker, the result of its function (None for a script), a WorkerError if the worker
        has failed or was stopped, or a TimeoutError if the worker still runs. These errors are
        returned, not raised.

    Raises:
        CallError: An argument is wrong.
    """
    job = _job_of(workers)
    job.ended.wait(None if timeout is None else _checked_seconds("timeout", timeout, math.inf))
    return Outcomes([_outcome_of(worker, timeout) for worker in workers], workers)


def stop_workers(workers: Workers, grace_time: float = 10) -> None:
    """End the workers that still run, and block until all have ended.

    The workers get SIGTERM and, after grace_time, SIGKILL. If all workers have ended, this call
    does nothing.

    Args:
        workers: The list from launch_workers().
        grace_time: Seconds between SIGTERM and SIGKILL, at most 30; at least 0.6 if this program
            ignores SIGINT.

    Raises:
        CallError: An argument is wrong.
    """
    job = _job_of(workers)
    seconds = _checked_seconds("grace_time", grace_time, GRACE_SECONDS_MAX)
    if job.ended.is_set():
        return
    job.stopping = True
    job.end(signal.SIGTERM)
    # The launcher kills the workers at the second signal. The second signal must differ from the
    # first one, or come after a pause. If a script has started this program in the background, the
    # launcher ignores SIGINT. In this case, send SIGTERM a second time, after a pause.
    second_signal, pause_s = signal.SIGINT, seconds
    if job.ignores_interrupts:
        second_signal, pause_s = signal.SIGTERM, max(seconds, _SAME_SIGNAL_SECONDS)
    if not job.ended.wait(pause_s):
        job.end(second_signal)
    job.ended.wait()


@dataclass
class _Settings:
    env: Mapping[str, str] | None
    start_timeout: int | None
    executable: str | os.PathLike[str] | None
    job_hosts: JobHosts
    elastic_arguments: ElasticArguments

    def environment(self) -> dict[str, str]:
        variables = {} if self.env is None else self.env
        if isinstance(variables, Mapping) and all(
            isinstance(text, str) for pair in variables.items() for text in pair
        ):
            return {**os.environ, **variables}
        raise CallError(f"env must map names of variables to text; got {self.env!r}")

    def flags(self) -> list[str]:
        flags = self.elastic_arguments.flags()
        flags += [] if self.start_timeout is None else [f"--start-timeout={self.start_timeout}"]
        if not self.job_hosts.are_given():
            return flags
        # Workers on other hosts get only the variables that the user has given, not all variables
        # of this process.
        variable_flags = [word for name in self.env or {} for word in ("-x", name)]
        return [*flags, *variable_flags, *self.job_hosts.flags()]

    def python_path(self) -> str:
        python = os.fspath(self.executable or sys.executable or "")
        if not python:
            raise CallError(
                "pass the path of a Python as executable; this process does not know its own"
            )
        return python


def _function_job(
    call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any] | None],
    n: int | None,
    settings: _Settings,
    output_flags: Sequence[str] | None,
) -> LaunchedJob:
    """Make a job that calls a function. If output_flags is None, this process captures the output
    of the workers; otherwise the launcher shows the output as these flags say."""
    function, args, kwargs = call
    if not callable(function):
        raise CallError(f"expected a function; got {function!r}")
    _check_arguments(args, kwargs)
    search_path = [folder for folder in sys.path if isinstance(folder, str)]
    import_paths = json.dumps([sys.prefix, search_path]).encode()
    try:
        content = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})), protocol=5)
    except Exception as error:
        raise CallError(
            "the function and its arguments cannot be sent to the workers, because they cannot be "
            f"pickled: {type(error).__name__}: {error}"
        ) from error
    workers = _make_workers(n, settings, runs_function=True)
    count = len(workers) or n  # None if n is not given and the hosts will be found later
    size_flags = [] if count is None else ["-n", str(count)]
    return LaunchedJob(
        JobPlan(
            workers=workers,
            program=[settings.python_path(), *_FUNCTION_WORKER_ARGUMENTS],
            flags=[*size_flags, *settings.flags(), *(output_flags or ())],
            environment=settings.environment(),
            call=[import_paths, content],
            keeps_output=output_flags is None,
        )
    )


def _script_job(
    target: str | os.PathLike[str] | Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    n: int | None,
    settings: _Settings,
) -> LaunchedJob:
    _check_arguments(args, kwargs)
    if kwargs:
        raise CallError(f"kwargs are for functions; give a script args instead; got {kwargs!r}")
    workers = _make_workers(n, settings, runs_function=False)
    return LaunchedJob(
        JobPlan(
            workers=workers,
            program=[*_program_words(target, settings), *map(str, args)],
            flags=["-n", str(len(workers)), *settings.flags()],
            environment=settings.environment(),
            keeps_output=True,
        )
    )


def _program_words(
    target: str | os.PathLike[str] | Sequence[str], settings: _Settings
) -> list[str]:
    if isinstance(target, (str, os.PathLike)):
        if Path(target).is_file():
            return [settings.python_path(), os.fspath(target)]
        raise CallError(
            f"there is no script {os.fspath(target)!r}; give a program and its arguments as a list"
        )
    if isinstance(target, (list, tuple)) and target and all(isinstance(w, str) for w in target):
        return list(target)
    raise CallError(
        "target must be a function, the path of a Python script, or a list of words, such as "
        f"['sh', '-c', 'date']; got {target!r}"
    )


def _check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
    if not isinstance(args, (list, tuple)):
        raise CallError(f"args must be a tuple or a list; got {args!r}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CallError(f"kwargs must be a dictionary; got {kwargs!r}")


def _make_workers(n: int | None, settings: _Settings, runs_function: bool) -> list[Worker]:
    hosts_are_given = settings.job_hosts.are_given()
    count = arguments.positive_whole_number(n)
    if count is None and not (hosts_are_given and n is None):
        raise CallError(f"n, the number of workers, must be a whole number, 1 or more; got {n!r}")
    if hosts_are_given:
        addresses = settings.job_hosts.addresses(count, settings.environment())
    else:
        addresses = [socket.gethostname()] * (count or 0)
    name = "worker" if settings.elastic_arguments.is_elastic() else "rank"
    return [Worker(rank, address, runs_function, name) for rank, address in enumerate(addresses)]


def _end_after_error(job: LaunchedJob, error: BaseException) -> None:
    """End the job after an error, and show what the job still prints. If the user presses Ctrl-C
    during this time, the launcher kills the workers that still run."""
    job.end(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    while job.is_alive() or job.has_output_left():
        try:
            job.show()
        except KeyboardInterrupt:
            job.end(signal.SIGINT)
        except Exception:  # a part of the output could not be shown
            continue


def _job_of(workers: Workers) -> LaunchedJob:
    if not isinstance(workers, Workers):
        raise CallError(f"workers must be what launch_workers() has returned; got {workers!r}")
    if not workers._job.belongs_to_this_process():
        raise CallError(
            "these workers belong to the parent of this forked child; call this in the parent"
        )
    return workers._job


def _checked_seconds(name: str, value: float, value_max: float) -> float:
    if isinstance(value, (int, float)) and 0 <= value <= value_max:
        return min(float(value), threading.TIMEOUT_MAX)
    limit = "on" if value_max == math.inf else f"to {value_max:g}"
    raise CallError(f"{name} must be a number of seconds from 0 {limit}; got {value!r}")


def _outcome_of(worker: Worker, timeout: float | None) -> Any:
    if not worker.has_ended:
        return TimeoutError(f"rank {worker.rank} (pid {worker.pid}) still runs after {timeout} s")
    failure = worker.failure
    return worker.result if failure is None else failure
