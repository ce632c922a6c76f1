"""The arguments and the results of elastic jobs that call a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from farandole import arguments
from farandole.errors import CallError, FarandoleError, WorkerError
from farandole.jobs.launched_job import LaunchedJob
from farandole.jobs.launched_worker import Worker


@dataclass(frozen=True)
class ElasticArguments:
    """The arguments of run() for elastic jobs. They mean the same as the flags of `farandole run`
    with these names."""

    min_workers: int | None = None
    max_workers: int | None = None
    slots_per_host: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[int] | None = None
    elastic_timeout: int | None = None
    discover_hosts: Any = None  # only checked here; HostDiscovery uses the value

    def is_elastic(self) -> bool:
        """Return whether the job is elastic. Raise CallError if arguments contradict each other."""
        if self.min_workers is not None:
            return True
        for field in fields(self):
            if getattr(self, field.name) is not None:
                raise CallError(
                    f"{field.name} is for elastic jobs: also say how many workers are enough, with "
                    "min_workers"
                )
        return False

    def flags(self) -> list[str]:
        """Return the flags of `farandole run`, which checks the numbers itself."""
        if not self.is_elastic():
            return []
        values = {
            "--min-workers": _checked_whole_number("min_workers", self.min_workers),
            "--max-workers": _checked_whole_number("max_workers", self.max_workers),
            "--slots-per-host": _checked_whole_number("slots_per_host", self.slots_per_host),
            "--reset-limit": _checked_whole_number("reset_limit", self.reset_limit),
            "--cooldown-range": self._cooldown_value(),
            "--elastic-timeout": _checked_whole_number("elastic_timeout", self.elastic_timeout),
        }
        return [f"{flag}={value}" for flag, value in values.items() if value is not None]

    def _cooldown_value(self) -> str | None:
        pair = self.cooldown_range
        if pair is None:
            return None
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            return ",".join(
                str(_checked_whole_number("cooldown_range", seconds)) for seconds in pair
            )
        raise CallError(
            f"cooldown_range must be two whole numbers of seconds, such as (1, 60); got {pair!r}"
        )


def _checked_whole_number(name: str, value: Any) -> int | None:
    if value is None or value == 0:
        return value
    number = arguments.positive_whole_number(value)
    if number is None or isinstance(value, bool):
        raise CallError(f"{name} must be a whole number, 0 or more; got {value!r}")
    return number


def results_of(job: LaunchedJob) -> list[Any]:
    """Return the results of the workers that were in the last group, by rank. Raise WorkerError if
    a worker has made the job fail, or if a worker of the last group has no result. Raise
    FarandoleError if the job could not go on for another reason."""
    workers = job.plan.workers
    if job.exit_code != 0 and (cause := _cause_of_failure(job)) is not None:
        raise cause
    last_epoch = max((worker.last_epoch_rank_and_size[0] for worker in workers), default=0)
    last_group_workers = [worker for worker in workers if _may_be_in_group_of(last_epoch, worker)]
    last_group_workers.sort(key=lambda worker: worker.last_epoch_rank_and_size)
    results = [worker.result for worker in last_group_workers]
    for worker in last_group_workers:
        if worker.failure is not None:
            raise worker.failure
    size = max((worker.last_epoch_rank_and_size[2] for worker in last_group_workers), default=0)
    if lost_ranks := set(range(size)) - {
        worker.last_epoch_rank_and_size[1] for worker in last_group_workers
    }:
        raise FarandoleError(
            f"the job has ended well, but the results of the ranks {sorted(lost_ranks)} are lost, "
            "because the connections to their hosts have ended too early"
        )
    return results


def _may_be_in_group_of(epoch: int, worker: Worker) -> bool:
    """Return whether the worker may have been in the group of this epoch. The group of a worker is
    unknown if the worker has exited with code 0 but without a result."""
    return worker.exit_code == 0 and (
        worker.state == "failed" or worker.last_epoch_rank_and_size[0] == epoch
    )


def _cause_of_failure(job: LaunchedJob) -> FarandoleError | None:
    """Return the error of the worker that has failed first. Its text also says why the job could
    not go on without this worker. If no worker is the cause, return an error with this reason."""
    reasons = re.findall("^farandole: (the job ends: .*)$", job.messages.text("stderr"), re.M)
    if job.first_failed_rank_and_pid is None and reasons:
        return FarandoleError(reasons[0])
    failed_workers = [worker for worker in job.plan.workers if worker.failure is not None]
    failed_workers.sort(
        key=lambda worker: (worker.rank, worker.pid) != job.first_failed_rank_and_pid
    )
    failure = failed_workers[0].failure if failed_workers else None
    if failure is None or not reasons:
        return failure
    exception_texts = (failure.exception_type, failure.exception_text, failure.remote_traceback)
    return WorkerError(
        f"{failure}\n\n{reasons[0]}", failure.rank, failure.exit_code, exception_texts
    )
