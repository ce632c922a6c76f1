"""The modules of the alias that have code of their own."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from horovod_functions import describe_worker, raise_key_error, train_after_a_loss

import farandole.keras
import farandole.tensorflow
import horovod.keras
import horovod.tensorflow.keras
import horovod.torch
from farandole.elastic import run_fn
from horovod.common import exceptions, util
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import HostUpdateResult, ObjectState, WorkerNotificationManager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.runner.common.util import secret
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.common.util.settings import Settings
from horovod.runner.util.threads import in_thread
from horovod.tensorflow.util import refs_to_vars, vars_to_refs


def test_horovod_torch_has_the_names_of_farandole_torch() -> None:
    for name in set(farandole.torch.__all__) - {"elastic"}:
        assert getattr(horovod.torch, name) is getattr(farandole.torch, name), name
        assert getattr(horovod.torch.mpi_ops, name) is getattr(farandole.torch, name), name
    assert horovod.torch.elastic.run is farandole.torch.elastic.run


def test_horovod_tensorflow_and_keras_have_the_names_of_farandole() -> None:
    for names, horovod_module, farandole_module in (
        (farandole.tensorflow.__all__, horovod.tensorflow, farandole.tensorflow),
        (farandole.keras.__all__, horovod.tensorflow.keras, farandole.keras),
    ):
        for name in set(names) - {"elastic", "callbacks"}:
            assert getattr(horovod_module, name) is getattr(farandole_module, name), name
    assert horovod.tensorflow.elastic.TensorFlowKerasState is farandole.keras.elastic.KerasState
    assert horovod.tensorflow.keras.callbacks.__name__ == "horovod.tensorflow.keras.callbacks"
    assert horovod.keras.callbacks.MetricAverageCallback is (
        farandole.keras.callbacks.MetricAverageCallback
    )
    variables = [tf.Variable(1.0), tf.Variable(2.0)]
    restored_variables = refs_to_vars(vars_to_refs(variables))
    assert all(one is other for one, other in zip(restored_variables, variables, strict=True))


def test_keras_functions_accept_arguments_of_horovod() -> None:
    hvd = horovod.keras
    hvd.init()
    assert hvd.allreduce(3.0, op=hvd.Sum) == 3.0
    assert hvd.allreduce(3.0, average=False) == hvd.allreduce(3.0) == 3.0
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), num_groups=0, groups=None)
    with pytest.raises(farandole.CallError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    hvd.shutdown()
    best = hvd.callbacks.BestModelCheckpoint("loss", 0, "min")
    assert (best.monitor, best.save_weights_only) == ("loss", False)


def test_every_failed_call_is_caught_as_an_internal_error() -> None:
    for error in (farandole.GroupLostError, farandole.CallError, farandole.FarandoleError):
        assert issubclass(error, HorovodInternalError)
    assert issubclass(HorovodInternalError, RuntimeError)
    assert not issubclass(HostsUpdatedInterrupt, HorovodInternalError)
    assert not issubclass(farandole.GroupLostError, ValueError)


def test_elastic_loops_begin_again_after_an_internal_error_of_the_program() -> None:
    state = ObjectState(lambda value: value, lambda: 0, step=0)
    resets: list[int] = []

    def train(state: ObjectState) -> int:
        state.step += 1
        if not resets:
            raise HorovodInternalError("simulates a lost rank")
        return state.step

    assert run_fn(train, lambda: resets.append(1))(state) == 1
    assert resets == [1]


def test_version_mismatches_raise_horovods_error() -> None:
    error = exceptions.HorovodVersionMismatchError("torch", "1.0", "2.0")
    assert isinstance(error, ImportError)
    assert str(error) == exceptions.get_version_mismatch_message("torch", "1.0", "2.0")
    assert "torch 1.0" in str(error) and "torch 2.0" in str(error)
    util.check_installed_version("torch", "1.0")


def test_features_are_reported() -> None:
    assert util.extension_available("torch") and util.extension_available("tensorflow")
    assert not util.gpu_available("torch")
    assert not util.nccl_built() and not util.ccl_built() and not util.ddl_built()
    assert util.gloo_built(verbose=True) == farandole.gloo_built()
    assert util.mpi_built() == farandole.mpi_built()
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet does not work here"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    assert Path(util.get_extension_full_path(__file__, "mpi_lib")).exists()
    assert util.get_ext_suffix().endswith(".so")


def test_horovod_basics_has_the_functions_as_methods() -> None:
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    assert basics.is_initialized() is False
    with pytest.raises(ValueError, match="call init"):
        basics.rank()


def test_environment_variables_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIAS_A", "1")
    monkeypatch.delenv("ALIAS_B", raising=False)
    with pytest.raises(KeyError), util.env(ALIAS_A=None, ALIAS_B="2"):
        assert os.environ["ALIAS_A"] == "1" and os.environ["ALIAS_B"] == "2"
        raise KeyError
    assert os.environ["ALIAS_A"] == "1" and "ALIAS_B" not in os.environ


def test_functions_of_util_work_as_in_horovod() -> None:
    assert [util.num_rank_is_power_2(n) for n in (0, 1, 2, 3, 4, 6)] == [
        *(False, True, True, False, True, False)
    ]
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert util.is_iterable([]) and not util.is_iterable(1)
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.9")
    assert util.is_version_greater_equal_than("1.0", "1.0.0")
    assert not util.is_version_greater_equal_than("1.9.1", "1.10")
    with pytest.raises(ValueError, match="is not a version"):
        util.is_version_greater_equal_than("new", "1.0")
    choose_op = util.get_average_backwards_compatibility_fun(None)
    assert (choose_op(None, None), choose_op(None, False)) == (farandole.Average, farandole.Sum)
    with pytest.raises(ValueError, match="not both"):
        choose_op(farandole.Sum, True)
    computed: list[int] = []
    cached = util._cache(computed.append)
    cached(1)
    cached(1)
    assert computed == [1]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMI_RANK": "2"}, (1, 3)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "3",
                "PMI_RANK": "2",
                "PMI_SIZE": "4",
            },
            (1, 3),
        ),
        ({"HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "PMI_RANK": "2", "PMI_SIZE": "4"}, (5, 8)),
    ],
)
def test_rank_and_size_come_from_the_environment(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert get_env_rank_and_size() == expected


def test_threads_run_functions_and_secret_keys_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str]] = []
    thread = in_thread(lambda n: calls.append((n, threading.current_thread().name)), (1,), "one")
    thread.join()
    assert calls == [(1, "one")] and thread.daemon
    exceptions: list[object] = []
    monkeypatch.setattr(threading, "excepthook", exceptions.append)
    for silent in (True, False):
        in_thread(raise_key_error, (), None, True, silent).join()
        assert len(exceptions) == (0 if silent else 1)
    assert secret.make_secret_key() != secret.make_secret_key()


def test_a_digest_belongs_to_its_key_and_message() -> None:
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert (len(key), len(digest)) == (secret.SECRET_LENGTH, secret.DIGEST_LENGTH)
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"another", digest)
    assert not secret.check_digest(secret.make_secret_key(), b"message", digest)


def test_settings_are_attributes() -> None:
    settings = Settings(hosts="localhost:2", num_proc=2, nics={"lo"})
    assert (settings.hosts, settings.num_proc, settings.nics) == ("localhost:2", 2, {"lo"})
    assert (settings.verbose, settings.elastic, settings.key) == (0, False, None)


def test_listeners_are_told_of_changes_of_hosts() -> None:
    state = ObjectState(lambda value: value, lambda: 0, step=0)
    manager = WorkerNotificationManager()
    manager.init()
    manager.register_listener(state)
    state.commit()
    for updates, skip_sync in (([1], True), ([2], False), ([1, 2], False)):
        for update in updates:
            manager.handle_hosts_updated(1.5, HostUpdateResult(update))
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        assert caught.value.skip_sync == skip_sync
        state.check_host_updates()
    manager.remove_listener(state)
    manager.handle_hosts_updated(1.5, HostUpdateResult.mixed)
    state.commit()
    assert HostUpdateResult.mixed == HostUpdateResult.removed | HostUpdateResult.added


class Squares(BaseDataLoader):
    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.problem = count, error
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        for number in range(self.count):
            self.threads.add(threading.get_ident())
            yield number
        if self.problem is not None:
            raise self.problem

    def _process_batch(self, batch: int) -> int:
        assert threading.current_thread() is threading.main_thread()
        return batch * batch


class AsyncSquares(AsyncDataLoaderMixin, Squares):
    pass


@pytest.mark.parametrize("size", [0, 1, 3, 64])
def test_batches_are_loaded_in_a_thread(size: int) -> None:
    squares = [number * number for number in range(20)]
    assert [*Squares(20)] == squares
    loader = AsyncSquares(size, count=20)
    assert len(loader) == 20
    for _ in range(2):
        assert [*loader] == squares
    assert (threading.get_ident() in loader.threads) == (size == 0)
    assert [*AsyncSquares(size, count=0)] == []


def test_the_thread_ends_with_the_loop() -> None:
    threads_before = threading.enumerate()
    loader = AsyncSquares(2, count=1000)
    for square in loader:
        if square == 9:
            break
    assert [square for square, _ in zip(loader, range(3), strict=False)] == [0, 1, 4]
    received = []
    for square in loader:
        received.append(square)
        loader.close_async_loader()
    assert received == [0]
    loader.close_async_loader()
    assert [thread for thread in threading.enumerate() if thread not in threads_before] == []


def test_errors_of_a_loader_reach_the_loop() -> None:
    received = []
    with pytest.raises(KeyError, match="no such file"):
        for square in AsyncSquares(2, count=3, error=KeyError("no such file")):
            received.append(square)
    assert received == [0, 1, 4]


def test_run_calls_a_function_on_each_worker() -> None:
    with pytest.warns(UserWarning, match="use_mpi has no meaning here"):
        results = horovod.run(describe_worker, args=(7,), num_proc=2, use_mpi=True)
    assert results == [(0, 7, "gloo"), (1, 7, "gloo")]


def test_run_is_elastic_with_horovods_arguments() -> None:
    results = horovod.run(
        train_after_a_loss, (2,), num_proc=2, min_np=1, cooldown_range=(1, 2), reset_limit=9
    )
    assert results == [(0, 2), (1, 2)]
    calls: list[int] = []

    def list_hosts() -> Any:
        calls.append(1)
        hosts = ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3"]
        return hosts[:2] if len(calls) == 1 else hosts

    results = horovod.run(
        train_after_a_loss,
        (4,),
        num_proc=2,
        min_num_proc=1,
        max_num_proc=4,
        slots=2,
        host_discovery_script=list_hosts,
        cooldown_range=(0, 1),
    )
    assert results == [(rank, 4) for rank in range(4)]


def test_elastic_arguments_of_other_jobs_are_named() -> None:
    with pytest.warns(UserWarning, match="reset_limit has no meaning here"):
        assert horovod.run(int, reset_limit=3) == [0]


@pytest.mark.parametrize("name", ["hosts", "hostfile"])
def test_run_names_other_hosts_as_farandole_run_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hostfile := tmp_path / "hosts").write_text("elsewhere slots=2\n")
    value = {"hosts": "localhost:1,elsewhere:1", "hostfile": str(hostfile)}[name]
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(
        farandole, "run", lambda *_, **options_of_call: calls.append(options_of_call)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        horovod.run(
            describe_worker,
            np=2,
            ssh_port=2222,
            ssh_identity_file="key",
            network_interfaces="eth0",
            **{name: value},
        )
    (options_of_call,) = calls
    other_flags = {"hosts", "hostfile"} - {name}
    assert (options_of_call[name], [options_of_call[other] for other in other_flags]) == (
        value,
        [None],
    )
    assert (
        options_of_call["n"],
        options_of_call["ssh_port"],
        options_of_call["ssh_identity_file"],
    ) == (2, 2222, "key")
    assert options_of_call["env"]["FARANDOLE_NETWORK_INTERFACES"] == "eth0"
    assert "HOROVOD_HOSTNAME" not in options_of_call["env"]


USED_ARGUMENTS = {
    *("func", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "np", "min_np"),
    *("max_np", "hosts", "hostfile", "host_discovery_script", "start_timeout", "output_filename"),
    "executable",
}


@pytest.mark.parametrize(
    "name", sorted(set(inspect.signature(horovod.run).parameters) - USED_ARGUMENTS)
)
def test_arguments_without_a_meaning_are_warned_of(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farandole, "run", lambda *_, **__: [])
    with pytest.warns(UserWarning, match=f"^{name} has no meaning here: "):
        horovod.run(describe_worker, **{name: 1})


def test_workers_do_not_load_the_modules_for_jobs() -> None:
    code = (
        "import sys, horovod.torch; "
        "print({'yaml', 'farandole.jobs', 'horovod.runner'} & set(sys.modules))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert completed.stdout == "set()\n"


def test_a_failing_function_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="no such image") as caught:
        horovod.run(raise_key_error, num_proc=2)
    assert re.match(
        "Horovod detected that one or more processes exited with non-zero status, thus causing "
        r"the job to be terminated. The first process to do so was:\n"
        r"Process name: [01]\nExit code: 1\n\nrank [01] ",
        str(caught.value),
    )
