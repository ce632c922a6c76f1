"""Checks of threads, signals, forks, and of leaving and joining a job."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
from suite import Suite, needs_async


class LifecycleChecks(Suite):
    def check_calls_of_several_threads(self) -> None:
        errors: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for seed in range(20):
                    result = self.api.allreduce(
                        self.tensor((30,), seed=seed), name=name, op=self.api.Sum
                    )
                    self.expect(result, np.sum(self.inputs_of_all((30,), seed=seed), 0), "float32")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(f"thread.{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    @needs_async
    def check_an_interrupted_wait(self) -> None:
        """A signal handler raises an exception in the wait of rank 0. The wait ends, but the call
        goes on."""

        def interrupt(*_: object) -> None:
            raise InterruptedError

        if self.size == 1:
            return
        api, expected = self.api, np.sum(self.inputs_of_all((3,)), 0)
        if self.rank == 0:
            handle = api.allreduce_async(self.tensor((3,)), name="late", op=api.Sum)
            dropped_handle = api.allreduce_async(self.tensor((3,)), name="dropped", op=api.Sum)
            former_handler = signal.signal(signal.SIGALRM, interrupt)
            for interrupted in (handle, dropped_handle):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1.0)
                    api.synchronize(interrupted)
                except InterruptedError:
                    assert not api.poll(interrupted)
                else:
                    raise AssertionError("the wait was not interrupted")
            signal.signal(signal.SIGALRM, former_handler)
            del dropped_handle, interrupted
        api.barrier()
        if self.rank != 0:
            api.allreduce_async(self.tensor((3,)), name="dropped")
            handle = api.allreduce_async(self.tensor((3,)), name="late", op=api.Sum)
        self.expect(api.synchronize(handle), expected, "float32")

    @needs_async
    def check_dropped_handles(self) -> None:
        for seed in range(50):
            self.api.allreduce_async(self.tensor((1000,), seed=seed))
        self.expect_sum_works()

    def check_a_forked_child_gets_errors(self) -> None:
        reader, writer = os.pipe()
        tensor, calls = self.tensor((2,)), [lambda: self.api.allreduce(tensor), self.api.barrier]
        if self.frontend.has_async:
            handle = self.api.allreduce_async(self.tensor((3,)))
            calls.append(lambda: self.api.synchronize(handle))
        child = os.fork()
        if child == 0:
            for call in calls:
                try:
                    call()
                except self.api.FarandoleError as error:
                    os.write(writer, f"{error}\n".encode())
            self.api.shutdown()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            lines = pipe.read().splitlines()
        assert os.waitpid(child, 0)[1] == 0
        assert len(lines) == len(calls), lines
        assert all("called in a forked child" in line for line in lines), lines
        if self.frontend.has_async:
            self.api.synchronize(handle)
        self.expect_sum_works()

    def check_yy_many_inits_leave_nothing_behind(self) -> None:
        """After shutdown(), no descriptors, threads or memory mappings of the engine are left."""

        def resources() -> tuple[int, int, int]:
            process_folder = Path("/proc/self")
            maps = process_folder.joinpath("maps").read_text().count("\n")
            return (
                len(list((process_folder / "fd").iterdir())),
                len(list((process_folder / "task").iterdir())),
                maps,
            )

        counts_by_cycle = []
        for cycle in range(60):
            self.api.shutdown()
            self.init()
            self.expect_sum_works()
            if 10 <= cycle < 20 or cycle >= 50:
                counts_by_cycle.append(resources())
        # After a cycle, a connection to another host may still be closing, so a count may be too
        # high by one for a moment. So the smallest counts of the last ten cycles must not exceed
        # the largest counts of the first ten counted cycles.
        (*counts, maps), (*later_counts, later_maps) = (
            [choose(values) for values in zip(*cycles, strict=True)]
            for choose, cycles in ((max, counts_by_cycle[:10]), (min, counts_by_cycle[10:]))
        )
        assert all(later <= count for count, later in zip(counts, later_counts, strict=True)), (
            counts_by_cycle
        )
        assert later_maps < maps + 20, counts_by_cycle  # malloc also adds memory maps

    def check_yz_init_after_another_rank_has_left(self) -> None:
        """If a rank has left, the other ranks may call init() again without a shutdown()."""
        for leaver in {0, self.size - 1} if self.size > 1 else ():
            self.api.barrier()
            if self.rank == leaver:
                self.api.shutdown()
            else:
                self.expect_lost(f"rank {leaver}", self.api.barrier)
            self.init()
            self.expect_sum_works()

    def check_zz_leaving_and_joining_again(self) -> None:
        """This check runs last, because it joins the job again with new group objects."""
        result = self.api.allgather(self.tensor((5,)))
        if self.size > 1 and self.frontend.has_async:
            pending_handle = self.api.allreduce_async(self.tensor((5,)), name=f"only.{self.rank}")
            self.api.barrier()
            self.api.shutdown()
            assert self.api.poll(pending_handle)
            self.expect_lost("shutdown() was called", self.api.synchronize, pending_handle)
            self.init()
        for _ in range(3):
            self.api.barrier()
            self.api.shutdown()
            self.api.shutdown()
            assert not self.api.is_initialized()
            self.expect_error("not initialized", self.api.allreduce, self.tensor((2,)))
            self.expect_error("not initialized", self.api.rank)
            self.init()
            self.api.init()
            assert (self.api.rank(), self.api.size()) == (self.rank, self.size)
            self.expect_sum_works()
            for group in self.my_groups():
                self.expect_sum_works(group)
        self.expect(result, np.concatenate(self.inputs_of_all((5,))), "float32")
