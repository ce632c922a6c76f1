"""Run a function as a job: `horovod.run(function, num_proc=2)`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import farandole
from farandole.errors import WorkerError
from horovod.runner.flags import FLAGS, elastic_settings_of
from horovod.runner.job_size import JobSize
from horovod.runner.workers import OUTPUT_PREFIX, worker_variables

__all__ = ["run"]


# size waiver: Horovod's arguments
def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | Callable[[], Any] | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call func(*args, **kwargs) on num_proc workers of this host, or of the hosts in `hosts` or
    `hostfile`, and return their results by rank. Other hosts are reached over ssh. np, min_np and
    max_np are older names of num_proc, min_num_proc and max_num_proc. Block until all workers have
    ended. If a worker fails, raise a WorkerError, which is a RuntimeError. Its text begins like the
    text of Horovod's error, and continues with the worker's exception. Warn about arguments that
    have no meaning here.

    With min_num_proc or host_discovery_script, the job is elastic, as with `horovodrun`. Its
    results are those of the workers that were in the last group. host_discovery_script may also be
    a function: see discover_hosts of farandole.run().
    """
    given_arguments = dict(locals())
    workers_min = min_np if min_num_proc is None else min_num_proc
    workers_max = max_np if max_num_proc is None else max_num_proc
    discovers_hosts = host_discovery_script is not None
    script = str(host_discovery_script) if discovers_hosts else None
    size = JobSize(np or num_proc, workers_min, workers_max, hosts, hostfile, script)
    workers = size.checked_workers()
    host_flags = size.host_flags()
    has_host_flags = bool(host_flags)
    elastic_settings = elastic_settings_of(host_flags, size.elastic_flags())
    ignored_texts = [
        f"{name} has no meaning here: {why}"
        for name, why in _ignored_arguments(has_host_flags, elastic_settings).items()
        if given_arguments[name] not in (None, False)
    ]
    if ignored_texts:
        warnings.warn("; ".join(ignored_texts), stacklevel=2)
    interface_variables = {}
    if has_host_flags and (names := network_interfaces or network_interface):
        interface_variables["FARANDOLE_NETWORK_INTERFACES"] = names
    try:
        return farandole.run(
            func,
            args,
            kwargs,
            n=workers,
            hosts=hosts if has_host_flags and not discovers_hosts else None,
            hostfile=hostfile if has_host_flags and hosts is None and not discovers_hosts else None,
            ssh_port=ssh_port if has_host_flags else None,
            ssh_identity_file=ssh_identity_file if has_host_flags else None,
            env=worker_variables(has_host_flags) | interface_variables,
            prefix=OUTPUT_PREFIX,
            output_dir=output_filename,
            start_timeout=start_timeout,
            executable=executable,
            min_workers=(workers_min or workers) if size.is_elastic else None,
            max_workers=workers_max if discovers_hosts else None,
            discover_hosts=host_discovery_script,
            slots_per_host=slots if discovers_hosts else None,
            reset_limit=reset_limit if size.is_elastic else None,
            cooldown_range=cooldown_range if size.is_elastic else None,
        )
    except WorkerError as error:
        raise _with_text_of_horovod(error) from None


def _with_text_of_horovod(error: WorkerError) -> WorkerError:
    """Put Horovod's text, which programs search for, before our own."""
    if not error.exit_code:
        return error  # the worker did its work, but its result could not be read
    text = (
        "Horovod detected that one or more processes exited with non-zero status, thus causing the "
        "job to be terminated. The first process to do so was:\n"
        f"Process name: {error.rank}\nExit code: {error.exit_code}\n\n{error}"
    )
    exception_texts = (error.exception_type, error.exception_text, error.remote_traceback)
    return WorkerError(text, error.rank, error.exit_code, exception_texts)


def _ignored_arguments(has_host_flags: bool, elastic_settings: Sequence[str]) -> dict[str, str]:
    """Return the arguments of run() that have no effect in a job with these settings, each with the
    reason. For `elastic_settings`, see elastic_settings_of()."""
    reasons = {
        argument: flag.why_ignored
        for flag in FLAGS
        for argument in flag.arguments or (flag.name,)
        if flag.why_ignored
        and not (has_host_flags and flag.to_run_flags)
        and flag.name not in elastic_settings
        and argument in inspect.signature(run).parameters
    }
    return reasons | {"verbose": "the output of the workers and the launcher is always shown"}
