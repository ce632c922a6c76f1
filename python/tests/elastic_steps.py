"""Checks of loops with an elastic Step, in a job of fixed size and without a framework."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Callable
from typing import Any

import farandole
from farandole import calls, core, elastic, lifecycle
from farandole.objects import allgather_object, broadcast_object

STEPS = 12
FAULT_POINTS = ("before", "between", "after")


def allreduce_sum(number: int) -> int:
    values, result = array("q", [number]), array("q", [0])
    addresses = values.buffer_info()[0], result.buffer_info()[0]
    view = core.BufferView(core.dtypes["int64"], (1,), *addresses)
    calls.run(core.allreduce("step", 0, view, core.reduce_ops["sum"], 1.0, 1.0), (values, result))
    return result[0]


def new_state(**objects: Any) -> elastic.ObjectState:
    return elastic.ObjectState(broadcast_object, lifecycle.rank, **objects)


def lose_group() -> None:
    raise farandole.GroupLostError("a failure that the test made")


class Faults:
    """Faults at random points of random steps: one rank fails, all ranks fail, or the members of
    the job change. With the same seed, all ranks choose the same faults."""

    def __init__(self, seed: int, state: elastic.ObjectState) -> None:
        generator = random.Random(seed)
        kinds = ("one rank", "all ranks", "members")
        steps = generator.sample(range(STEPS), 4)
        self.chosen = {
            (step, generator.choice(FAULT_POINTS)): (
                generator.choice(kinds),
                generator.randrange(farandole.size()),
            )
            for step in steps
        }
        self.count, self.state = len(self.chosen), state

    def inject_if_due(self, step: int, point: str) -> None:
        kind, rank = self.chosen.pop((step, point), ("", 0))
        if kind == "all ranks" or (kind == "one rank" and rank == farandole.rank()):
            lose_group()
        if kind == "members":
            if point == "between":
                raise elastic.HostsUpdatedInterrupt(skip_sync=True)
            self.state.on_hosts_updated(0, elastic.HostUpdateResult.added)


class StepChecks:
    def __init__(self) -> None:
        farandole.init()
        self.size = farandole.size()

    def expect_misuse(self, text: str, call: Callable[[], object]) -> None:
        try:
            call()
        except farandole.CallError as error:
            assert text in str(error), (text, str(error))
        else:
            raise AssertionError(f"no error with {text!r}")

    def check_each_step_counts_once(self) -> None:
        step_count = 0
        for seed in range(20):
            state = new_state(batch=0, total=0, log=[], between=0)
            faults, step = Faults(seed, state), elastic.Step(state)
            while step.ready() and state.batch < STEPS * self.size:
                with step:
                    number, step_count = state.batch // self.size, step_count + 1
                    faults.inject_if_due(number, "before")
                    state.total += allreduce_sum(state.batch + farandole.rank())
                    state.log.append(number)
                    faults.inject_if_due(number, "between")
                    state.total += allreduce_sum(1)
                    state.batch += self.size
                    faults.inject_if_due(number, "after")
                state.between += 1  # if the step fails, the restore undoes this addition
            expected = sum(range(STEPS * self.size)) + STEPS * self.size
            actual = (state.total, state.log, state.between)
            assert actual == (expected, list(range(STEPS)), STEPS), (seed, faults.chosen, actual)
            assert allgather_object(actual) == [actual] * self.size, seed
            assert not faults.chosen and faults.count == 4, seed
        assert step_count > 21 * STEPS, "too few steps were repeated"

    def check_changes_between_loops_are_kept(self) -> None:
        """A step fails after an inner loop has ended and the next inner loop has begun. The
        program's changes between these loops must be kept."""
        state = new_state(epoch=0, batch=0, log=[])
        step, failures = elastic.Step(state), iter([True])
        while step.ready() and state.epoch < 3:
            while step.ready() and state.batch < 2:
                with step:
                    allreduce_sum(1)
                    state.log.append((state.epoch, state.batch))
                    if state.log[-1] == (1, 0) and next(failures, False):
                        lose_group()
                    state.batch += 1
            state.epoch, state.batch = state.epoch + 1, 0
        assert state.log == [(epoch, batch) for epoch in range(3) for batch in range(2)]
        assert next(failures, None) is None

    def check_the_first_sync_is_repeated(self) -> None:
        class FailingState(elastic.ObjectState):
            attempts = 0

            def sync(self) -> None:
                self.attempts += 1
                if self.attempts == 1 and farandole.rank() == farandole.size() - 1:
                    lose_group()
                super().sync()

        state = FailingState(broadcast_object, lifecycle.rank, begin=farandole.rank())
        resets: list[int] = []
        state.register_reset_callbacks([lambda: resets.append(farandole.size())])
        assert elastic.Step(state).ready()
        assert (state.begin, state.attempts, resets) == (0, 2, [self.size])

    def check_a_change_of_members_keeps_the_step(self) -> None:
        state = new_state(batch=0)
        step, begun_steps = elastic.Step(state), []
        job = core.job_number()
        while step.ready() and state.batch < 4:
            with step:
                begun_steps.append(state.batch)
                state.batch += allreduce_sum(1) // self.size
                if state.batch == 2:
                    state.on_hosts_updated(0, elastic.HostUpdateResult.removed)
        assert begun_steps == [0, 1, 2, 3] and core.job_number() == job + 1

    def check_an_old_commit_in_the_step(self) -> None:
        """The block of a step may end with commit(), as in programs for elastic.run()."""
        state = new_state(batch=0)
        step, begun_steps = elastic.Step(state), []
        while step.ready() and state.batch < 3:
            with step:
                begun_steps.append(state.batch)
                state.batch += allreduce_sum(1) // self.size
                if begun_steps == [0, 1]:
                    state.on_hosts_updated(0, elastic.HostUpdateResult.added)
                state.commit()
        assert begun_steps == [0, 1, 2]

    def check_a_block_that_is_left_counts(self) -> None:
        state = new_state(batch=0)
        step = elastic.Step(state)
        while step.ready():
            with step:
                state.batch += 1
                if state.batch < 3:
                    continue
                break
        assert state.batch == 3

        def one_step() -> int:
            assert step.ready()
            with step:
                state.batch += 1
                return 7
            raise AssertionError("the step has not returned")

        assert one_step() == 7
        assert step.ready()
        state.batch = 9
        state.restore()
        assert state.batch == 4

    def check_other_errors_pass(self) -> None:
        for error in (ValueError("of the program"), KeyboardInterrupt()):
            step = elastic.Step(new_state(batch=0))
            assert step.ready()
            try:
                with step:
                    raise error
            except BaseException as raised:
                assert raised is error
            else:
                raise AssertionError("the error was swallowed")
            name = type(error).__name__
            self.expect_misuse(f"the last step ended with a {name}", step.ready)

    def check_a_wrong_call_is_not_repeated(self) -> None:
        step = elastic.Step(new_state())
        assert step.ready()

        def call_in_step() -> None:
            with step:
                broadcast_object(1, root_rank=farandole.size())

        self.expect_misuse("broadcast has root rank", call_in_step)

    def check_an_error_that_the_step_hides(self) -> None:
        """The program catches the error of a call. The step still counts as failed: its state is
        not saved, and the step is repeated."""
        state = new_state(batch=0, total=0)
        step, is_first = elastic.Step(state), True
        while step.ready() and state.batch < 3:
            with step:
                if state.batch == 1 and is_first:
                    is_first = False
                    if farandole.rank() == 0:
                        lifecycle.shutdown()
                        lose_group()
                try:
                    state.total += allreduce_sum(1)
                except farandole.GroupLostError:
                    state.total = -1000
                state.batch += 1
        assert state.total == 3 * self.size

    def check_each_step_needs_ready(self) -> None:
        step = elastic.Step(new_state())
        self.expect_misuse("a step begins without ready()", step.__enter__)

        def loop() -> None:
            assert step.ready()
            for _ in range(2):
                with step:
                    pass

        self.expect_misuse("a `for` loop would not repeat a failed step", loop)
        assert step.ready()

    def check_trainings_exclude_each_other(self) -> None:
        text = "another elastic training is running"
        outer, inner = elastic.Step(new_state()), elastic.Step(new_state())
        assert outer.ready() and inner.ready()
        run = elastic.run_fn(lambda state: None, elastic.reset_job)
        with outer:
            self.expect_misuse(text, inner.__enter__)
            self.expect_misuse(text, inner.ready)
            self.expect_misuse(text, outer.ready)
            self.expect_misuse("a step begins without ready()", outer.__enter__)
            self.expect_misuse(text, lambda: run(new_state()))
            thread = threading.Thread(target=lambda: self.expect_misuse(text, inner.ready))
            thread.start()
            thread.join()
        elastic.run_fn(lambda state: self.expect_misuse(text, inner.ready), elastic.reset_job)(
            new_state()
        )
        assert inner.ready()
        with inner:
            pass

    def check_a_step_in_another_thread(self) -> None:
        state = new_state(batch=0)
        step, failures = elastic.Step(state), iter([True])

        def train() -> None:
            while step.ready() and state.batch < 3:
                with step:
                    state.batch += allreduce_sum(1) // self.size
                    if state.batch == 2 and next(failures, False):
                        lose_group()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert state.batch == 3 and next(failures, None) is None

    def check_a_state_has_one_step(self) -> None:
        state = new_state()
        elastic.Step(state)
        self.expect_misuse("this state has a Step already", lambda: elastic.Step(state))

    def check_ranks_in_different_trainings(self) -> None:
        steps = [elastic.Step(new_state()), elastic.Step(new_state())]
        step = steps[farandole.rank() > 0]
        if self.size == 1:
            assert step.ready()
        else:
            self.expect_misuse("the ranks are in different trainings", step.ready)
        assert allreduce_sum(1) == self.size

    def check_a_step_after_a_function(self) -> None:
        state = new_state(batch=0)

        def train(state: elastic.ObjectState) -> None:
            while state.batch < 3:
                state.batch += allreduce_sum(1) // self.size
                state.commit()

        elastic.run_fn(train, elastic.reset_job)(state)
        step, failures = elastic.Step(state), iter([True])
        while step.ready() and state.batch < 6:
            with step:
                state.batch += allreduce_sum(1) // self.size
                if state.batch == 5 and next(failures, False):
                    lose_group()
        assert state.batch == 6 and next(failures, None) is None

    def check_a_job_that_the_program_has_joined_again(self) -> None:
        state = new_state(begin=farandole.rank())
        step = elastic.Step(state)
        assert step.ready()
        elastic.reset_job()
        state.begin = farandole.rank()
        assert step.ready()
        assert state.begin == 0
