"""Parts of the package that can be tested in one process."""

from __future__ import annotations

import ast
import copy
import gc
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import farandole
from farandole import CallError, FarandoleError, Group, GroupLostError, core, lifecycle
from farandole.handle import BatchHandle, Handle, PreparedCall, release_dropped


class ManualEngine:
    """An engine in which the test decides when calls are done."""

    forked = False

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.dropped: set[int] = set()
        self.released: list[int] = []

    def poll(self, number: int) -> bool:
        return number in self.done

    def wait(self, number: int) -> None:
        if number not in self.done:
            raise KeyboardInterrupt

    def drop(self, number: int) -> None:
        self.dropped.add(number)

    def release(self, number: int) -> None:
        self.released.append(number)


class CountedMemory:
    """An object whose class counts its living instances."""

    alive = 0

    def __init__(self) -> None:
        CountedMemory.alive += 1

    def __del__(self) -> None:
        CountedMemory.alive -= 1


def handle_of(engine, number, borrowed, finish=core.Engine.check_outcome):
    return Handle.for_call(engine, PreparedCall(SimpleNamespace(handle=number), borrowed, finish))


def test_errors_have_the_classes_that_users_catch() -> None:
    assert issubclass(CallError, ValueError) and issubclass(CallError, RuntimeError)
    assert issubclass(GroupLostError, FarandoleError)


def test_the_result_of_a_handle_stays() -> None:
    engine = ManualEngine()
    handle = handle_of(engine, 1, CountedMemory(), lambda _, number: number + 41)
    assert not handle.poll()
    engine.done.add(1)
    assert handle.poll()
    assert [handle.wait(), handle.wait()] == [42, 42]
    assert CountedMemory.alive == 0


def test_the_error_of_a_handle_stays() -> None:
    def fail(*_: object) -> None:
        raise CallError("wrong")

    engine = ManualEngine()
    engine.done.add(1)
    handle = handle_of(engine, 1, CountedMemory(), fail)
    for _ in range(2):
        with pytest.raises(CallError, match="wrong"):
            handle.wait()


class FailingCall(PreparedCall[None]):
    """An in-place call that fails. The traceback of its exception has a reference to the call."""

    def __init__(self, number: int) -> None:
        self.call = SimpleNamespace(handle=number)
        self.memory = CountedMemory()

    def finish(self, *_: object) -> None:
        raise CallError("wrong")


def test_a_failed_handle_frees_its_memory() -> None:
    def expect_failure(number: int) -> None:
        engine = ManualEngine()
        engine.done.add(number)
        failed_handle = Handle.for_call(engine, FailingCall(number))
        for _ in range(2):
            with pytest.raises(CallError):
                failed_handle.wait()
        with pytest.raises(CallError):
            BatchHandle([failed_handle]).take()

    gc.disable()
    try:
        for number in range(1, 4):
            expect_failure(number)
        assert CountedMemory.alive == 0
    finally:
        gc.enable()


def test_a_handle_in_a_reference_cycle_is_freed() -> None:
    engine = ManualEngine()
    for number in range(1, 4):
        memory = CountedMemory()
        memory.handle = handle_of(engine, number, memory, lambda *_, kept=memory: kept)
        engine.done.add(number)
        assert memory.handle.wait() is memory
    del memory
    gc.collect()
    assert CountedMemory.alive == 0


def test_a_handle_is_not_copied() -> None:
    for handle in (handle_of(ManualEngine(), 1, None), BatchHandle([])):
        with pytest.raises(CallError, match="cannot be copied"):
            copy.copy(handle)


def test_an_interruption_of_poll_is_not_lost() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    engine = ManualEngine()
    engine.done.add(1)
    with pytest.raises(KeyboardInterrupt):
        handle_of(engine, 1, None, interrupt).poll()


class OnceInterruptedFinish:
    """A finish function that raises KeyboardInterrupt in its first call, as after Ctrl-C."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> str:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return "here"


def test_an_interrupted_wait_releases_nothing() -> None:
    engine = ManualEngine()
    engine.done.add(1)
    handle = handle_of(engine, 1, CountedMemory(), OnceInterruptedFinish())
    with pytest.raises(KeyboardInterrupt):
        handle.take()
    assert engine.released == []
    assert handle.take() == "here"
    assert engine.released == [1] and CountedMemory.alive == 0


def test_a_name_is_in_use_until_the_wait_has_returned() -> None:
    def fail(*_: object) -> None:
        raise CallError("wrong")

    engine = ManualEngine()
    engine.done = {1, 2}
    successful, failing = (
        handle_of(engine, 1, None, lambda *_: 42),
        handle_of(engine, 2, None, fail),
    )
    assert successful.poll() and failing.poll()
    assert engine.released == []
    assert successful.wait() == successful.wait() == 42
    assert engine.released == [1]
    with pytest.raises(CallError, match="wrong"):
        failing.wait()
    assert engine.released == [1, 2]


def test_a_dropped_handle_releases_no_name() -> None:
    engine = ManualEngine()
    engine.done.add(1)
    handle = handle_of(engine, 1, None, lambda *_: None)
    assert handle.poll()
    del handle
    assert engine.released == [] and engine.dropped == {1}


def test_an_interrupted_batch_has_released_no_name() -> None:
    engine = ManualEngine()
    engine.done = {1, 2}
    first_handle = handle_of(engine, 1, None, lambda *_: "first")
    batch = BatchHandle([first_handle, handle_of(engine, 2, None, OnceInterruptedFinish())])
    with pytest.raises(KeyboardInterrupt):
        batch.take()
    assert engine.released == []
    assert batch.take() == ["first", "here"]
    assert engine.released == [1, 2]


def test_a_batch_waits_for_all_and_raises_the_first_error() -> None:
    def fail(_: object, number: int) -> None:
        raise CallError(f"wrong {number}")

    engine = ManualEngine()
    results = [handle_of(engine, 1, None, lambda *_: "one"), handle_of(engine, 2, None, fail)]
    memory = handle_of(engine, 4, CountedMemory(), lambda *_: None)
    batch = BatchHandle([*results, handle_of(engine, 3, None, fail), memory])
    engine.done = {1, 2, 3}
    assert not batch.poll()
    engine.done.add(4)
    assert batch.poll()
    for _ in range(2):
        with pytest.raises(CallError, match="wrong 2"):
            batch.wait()
    assert CountedMemory.alive == 0
    assert BatchHandle(results[:1]).wait() == ["one"]
    with pytest.raises(CallError, match="wrong 2"):
        batch.take()
    assert batch.take() == [None] * 4


def test_two_threads_can_wait_for_a_handle() -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    results: list[object] = []

    def finish(*_: object) -> int:
        has_begun.set()
        may_end.wait()
        return 42

    engine = ManualEngine()
    engine.done.add(1)
    handle = handle_of(engine, 1, None, finish)
    first_thread = threading.Thread(target=lambda: results.append(handle.wait()))
    first_thread.start()
    has_begun.wait()
    second_thread = threading.Thread(target=lambda: results.append(handle.wait()))
    second_thread.start()
    second_thread.join(0.1)  # an error would end the thread within this time
    may_end.set()
    first_thread.join()
    second_thread.join()
    assert results == [42, 42]


def test_a_new_call_releases_the_memory_of_dropped_ones() -> None:
    engine = ManualEngine()
    handle_of(engine, 8, CountedMemory())
    assert CountedMemory.alive == 1
    engine.done.add(8)
    handle_of(engine, 8, None)
    assert CountedMemory.alive == 0


def test_memory_of_a_dropped_handle_lives_until_the_call_is_done() -> None:
    engine = ManualEngine()
    handle = handle_of(engine, 7, CountedMemory())
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    del handle
    assert CountedMemory.alive == 1 and engine.dropped == {7}
    engine.done.add(7)
    release_dropped()
    assert CountedMemory.alive == 0


def test_calls_outside_a_job_raise_errors() -> None:
    assert not farandole.is_initialized()
    farandole.shutdown()
    with pytest.raises(CallError, match="call init"):
        farandole.rank()
    assert Group([0]).rank() is None
    with pytest.raises(CallError, match="not registered"):
        Group([0]).number()


def test_an_uncaught_exception_is_the_reason_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[str, core.LeaveCause, str]] = []
    engine = SimpleNamespace(shutdown=lambda *arguments: reports.append(arguments))
    try:
        raise ValueError("no data\nat all")
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    monkeypatch.setattr(lifecycle._process, "engine", engine)
    lifecycle._leave_at_exit()
    ((reason, cause, stack),) = reports
    assert reason == "raised ValueError: no data"
    assert cause is core.LeaveCause.EXCEPTION
    assert stack.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}"' in stack and stack.endswith("ValueError: no data\nat all\n")


def test_only_errors_raised_from_a_loss_count_as_a_loss() -> None:
    loss, later_error = farandole.GroupLostError("rank 0 died"), RuntimeError("step 7")
    assert lifecycle._was_caused_by_lost_rank(loss)
    assert not lifecycle._was_caused_by_lost_rank(later_error)
    later_error.__context__ = loss  # as if the handling of the loss had raised it
    assert not lifecycle._was_caused_by_lost_rank(later_error)
    later_error.__cause__ = KeyError(3)
    assert not lifecycle._was_caused_by_lost_rank(later_error)
    later_error.__cause__.__cause__ = later_error
    assert not lifecycle._was_caused_by_lost_rank(later_error)
    later_error.__cause__.__cause__ = loss
    assert lifecycle._was_caused_by_lost_rank(later_error)
    jax_error = RuntimeError("ABORTED: GroupLostError: rank 0 died")  # an error of JAX's own class
    assert lifecycle._was_caused_by_lost_rank(jax_error)


def test_a_fork_during_shutdown_leaves_no_engine_to_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parent forks while one of its threads ends the engine. This thread does not exist in the
    child, so the child must abandon the engine."""
    abandoned: list[bool] = []
    engine = SimpleNamespace(
        shutdown=lambda *_: lifecycle._abandon_in_child(),
        abandon_after_fork=lambda: abandoned.append(True),
    )
    monkeypatch.setattr(lifecycle._process, "engine", engine)
    monkeypatch.setattr(lifecycle._process, "is_child_of_member", False)
    lifecycle.shutdown()
    assert abandoned == [True]
    assert lifecycle._process.is_child_of_member
    assert lifecycle._process.leaving_engines == ()


def test_a_wrong_setting_is_named() -> None:
    program = "import farandole; farandole.init()"
    environment = {"FARANDOLE_SIZE": "many", "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert "CallError" in result.stderr
    assert "FARANDOLE_SIZE" in result.stderr and "many" in result.stderr


def test_the_typed_description_of_core_is_complete() -> None:
    module = ast.parse(Path(farandole.__file__).with_name("core.pyi").read_text())
    typed_names = {n.name: n for n in module.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    variables = {node.target.id for node in module.body if isinstance(node, ast.AnnAssign)}
    public_names = {name for name in dir(core) if not name.startswith("_")}
    assert public_names == variables | typed_names.keys() - {"SharedArray"}
    methods = {f.name for f in typed_names["Engine"].body if isinstance(f, ast.FunctionDef)}
    assert methods - {"__init__"} == {n for n in dir(core.Engine) if not n.startswith("_")}
