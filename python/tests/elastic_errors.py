"""The errors of elastic loops. Each case is a call that must fail, with the whole text of its
error."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from unittest import mock

import farandole
from farandole import calls, elastic, lifecycle
from farandole.group import Group
from farandole.jobs.elastic_jobs import results_of
from farandole.jobs.launched_job import JobPlan, LaunchedJob
from farandole.jobs.launched_worker import Worker
from farandole.objects import broadcast_object


def cases() -> Iterator[tuple[Callable[[], object], str]]:
    yield (
        lambda: call_as_new_worker(lambda: farandole.add_process_set([0, 1])),
        "add_process_set() was called before this process got the state of the training: in an "
        "elastic job, call it at the beginning of the function of hvd.elastic.run, or after "
        "Step.ready(), so that all ranks call it whenever the job is formed again",
    )
    step = elastic.Step(_new_state())
    yield (
        step.__enter__,
        "a step begins without ready(): write `while step.ready() and …:` around `with step:`, "
        "because a `for` loop would not repeat a failed step",
    )
    step.ready()
    with step:
        yield (
            elastic.Step(_new_state()).ready,
            "another elastic training is running: a step, or a function of hvd.elastic.run, "
            "cannot contain another one, and only one thread can train",
        )
    step.ready()
    with contextlib.suppress(KeyError), step:
        raise KeyError
    yield (
        step.ready,
        "the last step ended with a KeyError, so the ranks may have different states: handle such "
        "errors inside the step, on all ranks in the same way",
    )
    state = _new_state()
    steps = [elastic.Step(state), elastic.Step(_new_state())]
    yield (
        lambda: elastic.Step(state),
        "this state has a Step already: make one Step before the first loop, and use it in all "
        "loops",
    )
    state_number = state._number
    yield (
        steps[farandole.rank()].ready,
        "the ranks are in different trainings:\n"
        f"  rank 0   state {state_number} (ObjectState) in a Step\n"
        f"  rank 1   state {state_number + 1} (ObjectState) in a Step\n"
        "An elastic program must train with one state, in one function of hvd.elastic.run or with "
        "one Step",
    )
    recovery = elastic.Step(_new_state())._recovery
    # Simulate a loss: the worker that was rank 0 at the start dies before it has sent its state.
    recovery._began_as_rank_0 = False
    had_state, lifecycle._process.has_state = lifecycle._process.has_state, False
    yield (
        lambda: recovery.run(lambda: None),
        "rank 0 was lost before it had given its state to the other ranks; it may have loaded this "
        "state from a checkpoint, so no other rank can begin the training: start the job again",
    )
    lifecycle._process.has_state = had_state
    lost_set = Group([0])
    lost_set.was_added = True  # as if the job had been formed again after add_process_set()
    yield (
        lambda: calls.barrier(lost_set),
        "ProcessSet(process_set_id=None, ranks=[0]) is lost, because this process has left the job "
        "in which it was added: call add_process_set() again on all ranks. In an elastic job, call "
        "it at the beginning of the function, or give the process set to init(process_sets=[...])",
    )


def call_as_new_worker(call: Callable[[], object]) -> None:
    """Make the call as a new worker, which does not have the state yet."""
    with (
        mock.patch.dict(os.environ, {"FARANDOLE_ELASTIC_WORKER": "0"}),
        mock.patch.object(lifecycle._process, "has_state", False),
    ):
        call()


def job_cases() -> Iterator[tuple[Callable[[], object], str]]:
    run = farandole.run
    yield (
        lambda: run(int, reset_limit=3),
        "reset_limit is for elastic jobs: also say how many workers are enough, with min_workers",
    )
    yield (
        lambda: run(int, discover_hosts=list),
        "discover_hosts is for elastic jobs: also say how many workers are enough, with "
        "min_workers",
    )
    yield (
        lambda: run(int, min_workers=1, discover_hosts=3),
        "discover_hosts must be a command, the path of a script, or a function; got 3",
    )
    for hosts, problem in (
        (
            "hen",
            'must return hosts and slots, such as {"hen": 4}, or a list such as ["hen:4"]; it has '
            "returned 'hen'",
        ),
        ({3: 1}, "has returned 3 as a host; it must be a string without spaces, such as hen"),
        (
            ["hen 4"],
            "has returned 'hen 4' as a host; it must be a string without spaces, such as hen",
        ),
        ({"hen": 0}, "has returned 0 slots for hen; it must be a whole number, 1 or more"),
        ({"hen": True}, "has returned True slots for hen; it must be a whole number, 1 or more"),
    ):
        yield (
            lambda hosts=hosts: run(int, min_workers=1, discover_hosts=lambda: hosts),
            f"discover_hosts {problem}",
        )
    for value in (-1, True, "2"):
        yield (
            lambda value=value: run(int, min_workers=value),
            f"min_workers must be a whole number, 0 or more; got {value!r}",
        )
    for pair in (3, (1,), "1,60"):
        yield (
            lambda pair=pair: run(int, min_workers=1, cooldown_range=pair),
            f"cooldown_range must be two whole numbers of seconds, such as (1, 60); got {pair!r}",
        )

    own_end, other_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
    other_end.send(bytes(4))
    job = LaunchedJob(JobPlan([Worker(0, "", True)], [], [], {}))
    yield (
        lambda: job._receive_channels(own_end, selectors.DefaultSelector()),
        "this process has no descriptor left for the channel of a worker: raise the limit of "
        "`ulimit -n`",
    )
    (worker,) = job.plan.workers
    worker.exit_code, worker.state, job.exit_code = 0, "done", 0
    worker._outcome = {"kind": "result", "type": "int", "place": (3, 1, 2)}
    yield (
        lambda: results_of(job),
        "the job has ended well, but the results of the ranks [0] are lost, because the "
        "connections to their hosts have ended too early",
    )


def _new_state() -> elastic.ObjectState:
    return elastic.ObjectState(broadcast_object, lifecycle.rank)
