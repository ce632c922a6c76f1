"""Random programs whose calls have no names, or names that occur more than once.

Every rank makes the same calls, and waits at the same points. But each rank sleeps, polls and drops
handles at its own times. When the programs wait for an unnamed call, each rank chooses at random
which call this is. In spite of these differences, the names of calls and the rejections must be the
same on all ranks.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from suite import Suite, needs_async

PROGRAM_COUNT, STEP_COUNT, THREAD_COUNT = 6, 60, 3
NAME_COUNT = 4  # few names, so that programs often use one that is in use


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep cores busy, so that the ranks run at different speeds."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class NamingPrograms(Suite):
    @needs_async
    def check_naming_while_polling(self) -> None:
        own_generator = random.Random(self.rank)
        for _ in range(10):
            handles: list[Any] = []
            for seed in range(8):
                handles.append(self.start_sums(seed, None, False))
                time.sleep(own_generator.random() * 0.002)
                for handle in handles:
                    self.api.poll(handle)
            for seed, handle in enumerate(handles):
                self.expect_sums(self.api.synchronize(handle), seed, False)

    @needs_async
    def check_naming_when_results_are_taken_as_they_come(self) -> None:
        """As soon as `window` calls are in flight, take the result of one of them, or of all,
        before the next call. Each rank takes the results in its own order."""
        own_generator = random.Random(self.rank)
        for window in (1, 3, 8):
            handles: dict[int, Any] = {}
            for seed in range(40):
                take_count = 0 if len(handles) < window else window if seed % 16 < 8 else 1
                for _ in range(take_count):
                    self.take_any(handles, own_generator)
                handles[seed] = self.start_sums(seed, None, False)
            while handles:
                self.take_any(handles, own_generator)

    def take_any(self, handles: dict[int, Any], own_generator: random.Random) -> None:
        while True:
            seed = own_generator.choice(sorted(handles))
            if self.api.poll(handles[seed]):
                break
            time.sleep(own_generator.random() * 0.001)
        self.expect_sums(self.api.synchronize(handles.pop(seed)), seed, False)

    @needs_async
    def check_naming_in_random_programs(self) -> None:
        for seed in range(PROGRAM_COUNT):
            with busy_processes(2 if self.rank == 0 and seed % 2 == 1 else 0):
                self.run_naming_program(seed)

    @needs_async
    def check_naming_in_threads(self) -> None:
        """Calls of different threads have no defined order, so each of these calls must have a
        name."""
        errors: list[BaseException] = []

        def run(number: int) -> None:
            try:
                self.run_naming_program(1000 + number, f"thread {number}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREAD_COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    def run_naming_program(self, seed: int, thread: str = "") -> None:
        """Run a random program. If `thread` is given, all calls have names that begin with it."""
        generator = random.Random(seed)
        own_generator = random.Random(f"{seed} {self.rank} {thread}")
        in_use: set[str] = set()
        pending_calls: list[tuple[Any, int, str | None, bool]] = []
        dropped_handles: list[Any] = []

        def wait(index: int) -> None:
            if pending_calls[index][2] is None:  # wait for any unnamed call of this operation
                alternatives = [
                    i
                    for i, call in enumerate(pending_calls)
                    if call[2:] == pending_calls[index][2:]
                ]
                chosen_index = own_generator.choice(alternatives)
                pending_calls[index], pending_calls[chosen_index] = (
                    pending_calls[chosen_index],
                    pending_calls[index],
                )
            handle, step, name, grouped = pending_calls.pop(index)
            self.expect_sums(self.api.synchronize(handle), step, grouped)
            in_use.discard(name or "")

        for step in range(STEP_COUNT):
            is_wait, has_name, number = (
                generator.random() < 0.4,
                generator.random() < 0.5,
                generator.random(),
            )
            grouped, drops_handle = generator.random() < 0.25, generator.random() < 0.15
            name = (
                f"{thread} {seed} {grouped} {int(number * NAME_COUNT)}"
                if has_name or thread
                else None
            )
            if is_wait and pending_calls:
                wait(int(number * len(pending_calls)))
            elif name in in_use:
                self.expect_error(
                    "is in use by an earlier call", self.start_sums, step, name, grouped
                )
            else:
                handle = self.start_sums(step, name, grouped)
                if name:
                    in_use.add(name)
                if drops_handle:
                    dropped_handles.append(handle)
                else:
                    pending_calls.append((handle, step, name, grouped))
            for handle, *_ in pending_calls:
                if own_generator.random() < 0.3:
                    self.api.poll(handle)
            if dropped_handles and own_generator.random() < 0.3:
                dropped_handles.pop()
            if own_generator.random() < 0.2:
                time.sleep(own_generator.random() * 0.002)
        while pending_calls:
            wait(0)

    def start_sums(self, seed: int, name: str | None, grouped: bool) -> Any:
        if not grouped:
            tensor = self.tensor((20,), seed=seed)
            return self.api.allreduce_async(tensor, name=name, op=self.api.Sum)
        tensors = [self.tensor((20,), seed=seed), self.tensor((5,), seed=seed)]
        return self.api.grouped_allreduce_async(tensors, name=name, op=self.api.Sum)

    def expect_sums(self, result: Any, seed: int, grouped: bool) -> None:
        shapes = [(20,), (5,)] if grouped else [(20,)]
        for tensor, shape in zip(result if grouped else [result], shapes, strict=True):
            self.expect(tensor, np.sum(self.inputs_of_all(shape, seed=seed), 0), "float32")
