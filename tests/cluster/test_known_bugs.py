"""Bugs that users of other libraries have reported. The tests repeat the situations with Farandole.

Each test repeats one report. Its name ends with the project and the number of the issue. Its
docstring says first what happened in that project, and then what must happen here. docs/elastic.md
has a table of them.

Two tests are in other files. One needs hosts with networks of their own, and the other sends single
messages: test_a_host_that_is_cut_off_comes_back_pytorch_111646 in test_elastic_hosts.py, and
StoreServer.AMessageWithAWrongLengthGetsNoAnswer in src/rendezvous/store_server_test.cc.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from driven import kill, parent_of
from launched import TIMEOUT_SECONDS, CommandRun, run
from test_elastic import environment_of, new_workers, pids_of_finished_workers
from test_elastic_hosts import HostList
from test_stalls import read_errors_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEDGER_TRAINING = (sys.executable, str(HERE / "elastic_worker.py"))
PROGRAMS = (sys.executable, str(HERE / "known_bug_programs.py"))
FLAGS = ("--min-workers", "1", "--cooldown-range", "0,1")
# If a message contains one of these words, a bug in our own code has ended a process.
CRASH_WORDS = re.compile(r"terminate called|SIGABRT|SIGSEGV|code 134|code 139|bug in the engine")


@pytest.fixture
def host_list(tmp_path: Path) -> HostList:
    return HostList(tmp_path)


@pytest.fixture
def stop_file(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet. The trainings end when the test makes this
    file."""
    return tmp_path / "stop"


def workers_of(job: CommandRun) -> dict[int, int]:
    """Return the process ids of the workers that run, by their numbers."""
    matches = {
        pid: re.search(r"\0FARANDOLE_ELASTIC_WORKER=(\d+)\0", environment_of(pid))
        for pid in job.remaining_processes()
    }
    return {int(match[1]): pid for pid, match in matches.items() if match}


def ancestors_of(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = parent_of(pid)


def launcher_of(job: CommandRun, worker: int) -> int:
    """Return the process that has started the workers of the host on which this worker runs."""
    ancestors = ancestors_of(workers_of(job)[worker])
    return next(pid for pid in ancestors if parent_of(pid) == job.process.pid)


def kill_host(job: CommandRun, worker: int) -> None:
    """Kill all processes of the host on which this worker runs."""
    launcher = launcher_of(job, worker)
    for pid in job.remaining_processes():
        if launcher in ancestors_of(pid):
            kill(pid)


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def endpoints_of(job: CommandRun) -> dict[tuple[str, int], int]:
    """Return the addresses and ports at which processes of the job listen, each with its process
    id."""
    job_pids = job.remaining_processes()
    rows = subprocess.run(["ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout
    endpoints = {}
    for row in rows.splitlines():
        owner = re.search(r"pid=(\d+)", row)
        address, port = row.split()[3].rsplit(":", 1)
        if owner and int(owner[1]) in job_pids:
            endpoints[address.strip("[]"), int(port)] = int(owner[1])
    assert endpoints, rows
    return endpoints


def read_start(job: CommandRun, workers: int) -> dict[int, int]:
    """Wait until all workers train, and return their process ids."""
    job.read_until(f"of {workers}", times=workers)
    return workers_of(job)


def expect_success(job: CommandRun) -> None:
    code = job.end()
    messages = f"{job.output}\n{job.errors}"
    assert code == 0, messages
    assert not CRASH_WORDS.search(job.errors + job.output), messages
    assert job.remaining_processes() == []


TORCH_TRAINING = """
import os, signal, numpy as np, torch, farandole.torch as hvd
number, batches, sizes = int(os.environ["FARANDOLE_ELASTIC_WORKER"]), 60, (3000, 5)

def gradients(batch):  # whole numbers, so that sums do not depend on the order
    source = np.random.default_rng(batch)
    return [torch.tensor(source.integers(-99, 99, size), dtype=torch.float32) for size in sizes]

def die(gradient):
    if number == 1 and state.batch >= batches // 3:
        os.kill(os.getpid(), signal.SIGKILL)

model = torch.nn.ParameterList(torch.zeros(size) for size in sizes)
model[1].register_hook(die)  # when the first gradient is already being combined
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
state = hvd.elastic.TorchState(model, optimizer, batch=0)

@hvd.elastic.run
def train(state):
    print(f"worker {number} (pid {os.getpid()}) is one of {hvd.size()}", flush=True)
    while state.batch < batches:
        expected = gradients(state.batch + hvd.rank())
        optimizer.zero_grad()
        for parameter, gradient in zip(model, expected):
            (parameter * gradient).sum().backward()
        optimizer.step()
        state.batch += hvd.size()
        state.commit()

train(state)
totals = [sum(parts) for parts in zip(*map(gradients, range(state.batch)))]
for parameter, total in zip(model, totals):
    assert torch.equal(parameter.data, -total)
print(f"worker {number} (pid {os.getpid()}) has the right sum", flush=True)
"""


def test_the_others_survive_the_kill_of_one_worker_horovod_2908() -> None:
    """Rank 1 of 4 was killed while PyTorch trained. The other three ranks aborted by an uncaught
    exception of Gloo. Since this report, Horovod skips its own tests of this case.

    Here, the other three ranks keep their processes and continue as a group of three. Each element
    of the weights is the sum of all batches, each counted once."""
    flags = ("--min-workers", "1", "--cooldown-range", "60,60")  # the killed worker is not replaced
    with CommandRun("run", "-n", "4", *flags, sys.executable, "-c", TORCH_TRAINING) as job:
        job.read_until("is one of 4", times=4)
        expect_success(job)
    starts = re.findall(r"worker (\d) \(pid (\d+)\) is one of 4", job.output)
    first_workers = {int(number): int(pid) for number, pid in starts}
    del first_workers[1]
    assert pids_of_finished_workers(job) == first_workers
    assert job.output.count("is one of 3") == 3
    assert "worker 1 (pid" in job.errors and "killed by signal 9" in job.errors


def test_a_job_whose_hosts_all_fail_ends_horovod_2030() -> None:
    """Horovod's own tests in which all hosts fail, or in which too few hosts are found, did not
    work. Horovod skips them for all frameworks.

    Here, a job whose workers fail on all hosts ends, and shows the failure of one worker."""
    program = "import os, farandole; farandole.init(); os._exit(3)"
    job = run("run", "-H", "127.0.0.1:1,127.0.0.2:1", *FLAGS, sys.executable, "-c", program)
    assert job.process.returncode != 0
    assert "no worker is left that has the state of the training" in job.errors
    assert re.search(r"rank [01] \(.*\) exited with code 3", job.errors), job.errors


def test_a_job_with_too_few_hosts_ends_at_its_limit_horovod_2030(host_list: HostList) -> None:
    """This test repeats the same report as the test above. Here, a job may not find enough hosts,
    at its start or later. Then it ends after --elastic-timeout, and says what is missing."""
    host_list.set("127.0.0.1:1")
    flags = [*host_list.flags(2), "-n", "2", "--min-workers", "2", "--elastic-timeout", "5"]
    job = run("run", *flags, "true")
    assert job.process.returncode != 0
    assert "no hosts with 2 slots were found within 5 s" in job.errors

    host_list.set("127.0.0.1:1", "127.0.0.2:1")
    program = (
        "import os, farandole\n"
        "from farandole import calls\n"
        "farandole.init()\n"
        "if farandole.rank() == 1: os._exit(3)\n"
        "try: calls.barrier()\n"
        "except farandole.GroupLostError: farandole.shutdown(); farandole.init()\n"
    )
    job = run("run", *flags, "--cooldown-range", "60,60", sys.executable, "-c", program)
    assert job.process.returncode != 0
    assert "fewer than 2 workers could be found within 5 s" in job.errors


@pytest.mark.parametrize("leaves_by", ["not listed", "SIGTERM"])
def test_a_host_leaves_and_too_few_are_left_horovod_3494(
    host_list: HostList, leaves_by: str
) -> None:
    """A host left in an orderly way, so the job had fewer hosts than its minimum. When a new host
    came, the old workers did not sync the state, and the new worker waited in the sync forever.

    Here, all workers sync the state. This holds if the host is removed from the list, and also if
    the launcher on this host gets SIGTERM."""
    host_list.set("127.0.0.1:1", "127.0.0.2:1")
    flags = [*host_list.flags(2), "-n", "2", "--min-workers", "2", "--grace-time", "1"]
    with CommandRun("run", *flags, *LEDGER_TRAINING, environment=host_list.environment()) as job:
        first_pids = read_start(job, 2)
        if leaves_by == "SIGTERM":
            kill(launcher_of(job, 1), signal.SIGTERM)
            read_errors_until(job, r"node \d has left")
        host_list.set("127.0.0.1:1")
        if leaves_by == "not listed":
            read_errors_until(job, r"node \d leaves")
        host_list.set("127.0.0.1:1", "127.0.0.3:1")
        job.read_until("of 2 at batch", times=4)
        host_list.stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 2}
    assert pids_of_finished_workers(job)[0] == first_pids[0]


def test_a_worker_fails_while_hosts_are_discovered_horovod_3014(
    host_list: HostList, tmp_path: Path
) -> None:
    """A worker failed while the driver waited for the script that lists the hosts. During this
    time, the driver kept a lock, so all workers waited forever.

    Here, the others form a group, and a new worker joins, while the script still runs. Later, the
    driver uses the output of the script."""
    host_list.set("127.0.0.1:2")
    block_file, begun_file = tmp_path / "blocked", tmp_path / "began"
    script = (
        f"while test -e {block_file}; do touch {begun_file}; sleep 0.05; done; cat {host_list.path}"
    )
    flags = [*host_list.flags(3), "-n", "2", "--host-discovery-script", script]
    with CommandRun("run", *flags, *LEDGER_TRAINING, environment=host_list.environment()) as job:
        first_pids = read_start(job, 2)
        block_file.touch()
        while not begun_file.exists():
            time.sleep(0.01)
        kill(first_pids[1])
        job.read_until("of 2 at batch", times=4)
        assert block_file.exists()
        host_list.set("127.0.0.1:2", "127.0.0.2:1")
        block_file.unlink()
        job.read_until("of 3 at batch", times=3)
        host_list.stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 2, 3}
    assert pids_of_finished_workers(job)[0] == first_pids[0]


def test_a_thread_makes_calls_while_a_host_is_lost_horovod_3264(stop_file: Path) -> None:
    """All workers of one of two hosts were killed. The workers of the other host ended with code
    134, because a thread still made calls while the library shut down.

    Here, a thread makes calls all the time, even while the worker leaves the job and the job is
    formed again. Each call has a correct result or an error, and no process aborts."""
    program = (*PROGRAMS, "calls_in_a_thread")
    hosts = ("-H", "127.0.0.1:2,127.0.0.2:2")
    with CommandRun(
        "run", *hosts, *FLAGS, *program, environment={"HOLD_UNTIL": str(stop_file)}
    ) as job:
        first_pids = read_start(job, 4)
        for worker in (2, 3):
            kill(first_pids[worker])
        job.read_until("is one of 4", times=8)
        stop_file.touch()
        expect_success(job)
    matches = re.findall(r"worker \d+ \(pid (\d+)\) has the right counts; (\d+) calls", job.output)
    failed_calls = {int(pid): int(number) for pid, number in matches}
    assert len(failed_calls) == 4
    for survivor in (0, 1):
        assert failed_calls[first_pids[survivor]] > 0


KERAS_TRAINING = """
import os, time, numpy as np, keras, farandole.keras as hvd
number, epochs = int(os.environ["FARANDOLE_ELASTIC_WORKER"]), 4
data = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
values = data.sum(1, keepdims=True)

def make_model(seed, wrap):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer=wrap(keras.optimizers.Adam(0.05)), loss="mse")
    return model

def fit(model, first, *callbacks):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(data[first:], values[first:], callbacks=list(callbacks), **options)

def variables(model):
    return map(keras.ops.convert_to_numpy, [*model.variables, *model.optimizer.variables])

hvd.init()
model = make_model(number, hvd.DistributedOptimizer)  # only fit() would build the optimizer
state = hvd.elastic.KerasState(model, epoch=0, batch=0)

@hvd.elastic.run
def train(state):
    print(f"worker {number} is one of {hvd.size()}, at epoch {state.epoch}", flush=True)
    while state.epoch < epochs:
        while state.epoch == 2 and not hvd.broadcast_object(os.path.exists(os.environ["STOP"])):
            state.commit()
            time.sleep(0.01)
        update = hvd.elastic.UpdateBatchStateCallback(state)
        fit(model, 8 * state.batch, update, hvd.elastic.CommitStateCallback(state))
        state.epoch += 1

train(state)
# All workers use the same data, so their number must not change the result.
alone = make_model(0, lambda optimizer: optimizer)
for _ in range(epochs):
    fit(alone, 0)
for one, other in zip(variables(model), variables(alone), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
print(f"worker {number} (pid {os.getpid()}) has the right sum", flush=True)
"""
KERAS = (sys.executable, "-c", KERAS_TRAINING)


@pytest.fixture
def keras(stop_file: Path) -> dict[str, str]:
    """Return the variables for KERAS_TRAINING."""
    return {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "STOP": str(stop_file)}


def test_a_new_worker_with_a_new_optimizer_starts_horovod_2652(
    stop_file: Path, keras: dict[str, str]
) -> None:
    """In a training of Keras with Adam, a new worker took the place of a lost one. The optimizer of
    the new worker had no variables yet, so the workers sent different variables, and all waited
    forever.

    Here, the new worker gets all variables of the model and of the optimizer. In the end, each
    variable has the same value as in a training without a failure."""
    with CommandRun("run", "-n", "2", *FLAGS, *KERAS, environment=keras, seconds=300) as job:
        job.read_until("is one of 2, at epoch 0", times=2)
        survivor = workers_of(job)[0]
        kill(workers_of(job)[1])
        job.read_until("worker 2 is one of 2")
        stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 2}
    assert pids_of_finished_workers(job)[0] == survivor


def test_a_new_host_joins_during_fit_horovod_2285(
    stop_file: Path, host_list: HostList, keras: dict[str, str]
) -> None:
    """A host was added while Keras trained. The old workers waited for the new worker in a sync of
    the state. But the new worker began to train without this sync, so the old workers waited
    forever.

    Here, the training begins with one worker and goes on with two. In the end, each variable has
    the same value as in a training with one worker."""
    host_list.set("127.0.0.1:1")
    with CommandRun("run", *host_list.flags(2), *KERAS, environment=keras, seconds=300) as job:
        job.read_until("worker 0 is one of 1, at epoch 0")
        host_list.set("127.0.0.1:1", "127.0.0.2:1")
        job.read_until("worker 1 is one of 2")
        stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 1}


def test_the_others_wait_when_a_needed_host_is_lost_horovod_2484() -> None:
    """The job needed at least three hosts, and one of its three hosts was shut down. Sometimes the
    other two hosts did not wait for a new host: all their workers failed by an uncaught exception
    of a background thread.

    Here, the other workers keep the state and wait until the host is there again."""
    hosts = ("-H", "127.0.0.1:1,127.0.0.2:1,127.0.0.3:1", "--min-workers", "3")
    with CommandRun("run", *hosts, *LEDGER_TRAINING, environment=new_workers(3)) as job:
        first_pids = read_start(job, 3)
        kill_host(job, 2)
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 1, 3}, job.errors
    assert {0: first_pids[0], 1: first_pids[1]}.items() <= pids_of_finished_workers(job).items()
    assert not re.search(r"of [12] at batch", job.output)
    assert "(127.0.0.3) is gone" in job.errors


def test_a_worker_with_a_process_set_is_lost_horovod_4021(stop_file: Path) -> None:
    """Three workers had the process sets [1] and [0, 2]. When a worker was killed, the others
    failed, too.

    Here, the others go on with process sets that they add again, and each element of their results
    is right. Calls in the old process sets raise an error that says what to do."""
    program = (*PROGRAMS, "calls_in_process_sets")
    with CommandRun(
        "run", "-n", "3", *FLAGS, *program, environment={"HOLD_UNTIL": str(stop_file)}
    ) as job:
        first_pids = read_start(job, 3)
        job.read_until("is one of 3", times=6)
        stop_file.touch()
        expect_success(job)
    ended_pids = dict(re.findall(r"worker (\d+) \(pid (\d+)\) has the right counts", job.output))
    assert ended_pids.keys() == {"0", "2", "3"}
    assert [int(ended_pids["0"]), int(ended_pids["2"])] == [first_pids[0], first_pids[2]]


def test_process_sets_that_would_be_lost_are_rejected_horovod_4021() -> None:
    """The program of the same report adds its process sets before it calls the function that
    trains. When a new worker joins, the other workers are already in this function. So the new
    worker would wait for them in add_process_set() forever.

    Here, the workers with which the job starts get an error from add_process_set(). The error says
    where the program must make this call."""
    program = "import farandole; farandole.init(); farandole.add_process_set([0, 1])"
    job = run("run", "-n", "2", *FLAGS, sys.executable, "-c", program)
    assert job.process.returncode == 1
    assert "call it at the beginning of the function of hvd.elastic.run" in job.errors


@pytest.fixture(scope="module")
def clock_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed to build the shim"
    library = tmp_path_factory.mktemp("shims") / "clock.so"
    source = HERE / "shims" / "clock.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("step", [0, -1], ids=["stands still", "runs backwards"])
def test_changes_within_one_second_both_count_horovod_time_stamps(
    clock_shim: Path, host_list: HostList, step: int
) -> None:
    """In Horovod, each change of the hosts had a time stamp in whole seconds. A change counted only
    if its time stamp was greater than that of the change before it. So the second of two changes
    within one second was lost. A change after the clock was set back was lost, too.

    Here, no decision depends on the wall clock. In this test, the clock of all processes of the job
    stands still, or runs backwards."""
    clock = {"LD_PRELOAD": str(clock_shim), "CLOCK_START": "1700000000", "CLOCK_STEP": str(step)}
    host_list.set("127.0.0.1:1", "127.0.0.2:1")
    flags = [*host_list.flags(3), "-n", "2"]
    with CommandRun(
        "run", *flags, *LEDGER_TRAINING, environment=host_list.environment() | clock
    ) as job:
        first_pids = read_start(job, 2)
        kill(first_pids[1])  # the failure is one change of the hosts, and the new list is another
        host_list.set("127.0.0.1:1", "127.0.0.3:1", "127.0.0.4:1")
        read_errors_until(job, r"node \d has left")
        while len(known_workers := workers_of(job)) < 3:
            time.sleep(0.02)
        job.read_until(f"worker {max(known_workers)} has rank")
        # Change the list twice without a pause. If the driver misses the first list, it sees one
        # change, in which one host leaves and another one comes.
        host_list.set("127.0.0.1:1", "127.0.0.3:1", "127.0.0.4:1", "127.0.0.5:1")
        host_list.set("127.0.0.1:1", "127.0.0.3:1", "127.0.0.5:1")
        while not (new := workers_of(job).keys() - known_workers.keys()):
            time.sleep(0.02)
        job.read_until(f"worker {max(new)} has rank")
        read_errors_until(job, r"has left[\s\S]*has left")
        host_list.stop_file.touch()
        expect_success(job)
    assert len(pids_of_finished_workers(job)) == 3, job.output + job.errors
    assert {0: first_pids[0]}.items() <= pids_of_finished_workers(job).items()
    assert max(new) in pids_of_finished_workers(job)


# These files use the wall clock only for output that people read, or for names.
MAY_LOOK_AT_THE_WALL_CLOCK = {
    "examination.cc",  # shows the user how far the clocks of hosts differ
    "job_name.cc",
    "job_output.cc",
    "line_prefix.cc",
    "line_prefix.h",
    "prober.cc",
    "timeline.cc",
}


def test_no_decision_looks_at_the_wall_clock_horovod_time_stamps() -> None:
    """No decision may use the wall clock. So each file that reads the wall clock must be listed in
    MAY_LOOK_AT_THE_WALL_CLOCK."""
    wall_clock = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\((nullptr|NULL|0)\)")
    files = {
        file.name
        for file in (ROOT / "src").rglob("*")
        if file.suffix in (".cc", ".h") and "_test." not in file.name
        if wall_clock.search(file.read_text())
    }
    assert files == MAY_LOOK_AT_THE_WALL_CLOCK


def is_open(stranger: socket.socket) -> bool:
    """Return whether the process at the other end still has the connection open."""
    stranger.setblocking(False)
    try:
        return stranger.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("free_descriptors", [None, 8], ids=["128 files", "8 free files"])
def test_strangers_take_all_descriptors_gloo_emfile(
    stop_file: Path, free_descriptors: int | None
) -> None:
    """Strangers opened 200 idle connections to a process that may have 128 open files. An accept()
    failed, and this ended the process (measured with Gloo; there is no issue about it).

    Here, strangers can use only a part of the 128 files. If too few descriptors are free, the
    process closes some of these connections. The training goes on, and a new worker joins."""
    job = CommandRun(
        *("run", "-H", "127.0.0.1:1,127.0.0.2:1", *FLAGS, *LEDGER_TRAINING),
        environment={"HOLD_UNTIL": str(stop_file)},
        before_exec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    )
    with job, ExitStack() as strangers:
        first_pids = read_start(job, 2)
        endpoints = endpoints_of(job)
        listeners = set(endpoints.values())
        for pid in listeners if free_descriptors else ():
            descriptors_max = open_descriptors(pid) + free_descriptors
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
        sockets = [
            strangers.enter_context(socket.create_connection(endpoint, TIMEOUT_SECONDS))
            for endpoint in [*endpoints] * 200
        ]
        assert all(open_descriptors(pid) < 100 for pid in listeners)
        while sum(map(is_open, sockets)) > (free_descriptors or 64) * len(listeners):
            time.sleep(0.05)
        kill(first_pids[1])
        job.read_until("of 2 at batch", times=4)
        stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job).keys() == {0, 2}
    assert pids_of_finished_workers(job)[0] == first_pids[0]


def messages_with_false_lengths() -> list[bytes]:
    """Return beginnings of messages whose length is larger than the message and than any limit."""
    client_hello = bytes.fromhex("0100ffff0303") + bytes(32)  # a ClientHello of 64 KiB
    pre_shared_key = bytes.fromhex("00000002130101000009002900ffffff0000")  # a key name of 64 KiB
    frame = b"FARN" + bytes([1, 4]) + bytes(34) + bytes([255] * 4)  # ours, of a Store: 4 GiB
    record = bytes.fromhex("160301")
    return [
        record + b"\xff\xff" + client_hello,
        record + len(client_hello).to_bytes(2, "big") + client_hello,
        record
        + len(client_hello + pre_shared_key).to_bytes(2, "big")
        + client_hello
        + pre_shared_key,
        frame,
        frame + bytes(1000),
    ]


def answer_to(endpoint: tuple[str, int], message: bytes) -> bytes:
    with socket.create_connection(endpoint, TIMEOUT_SECONDS) as stranger:
        try:
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(1)
        except OSError:  # the job has already closed the connection
            return b""


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_false_message_lengths_get_no_answer_munge_cve_2026_25506(stop_file: Path) -> None:
    """A client of munged, the daemon that signs messages for Slurm, sent a message with a length
    that was larger than the message. The daemon wrote past its memory, and could be made to reveal
    its key.

    Here, strangers send messages with such lengths to all ports of a job. The job neither answers
    these messages nor allocates memory for them, and the training goes on. The unit test
    StoreServer.AMessageWithAWrongLengthGetsNoAnswer sends such lengths to the store, as a worker
    of the job could."""
    hosts = ("-H", "127.0.0.1:1,127.0.0.2:1")
    with CommandRun(
        "run", *hosts, *FLAGS, *LEDGER_TRAINING, environment={"HOLD_UNTIL": str(stop_file)}
    ) as job:
        first_pids = read_start(job, 2)
        endpoints = endpoints_of(job)
        resident_before = {pid: resident_bytes(pid) for pid in endpoints.values()}
        for message in messages_with_false_lengths() * 20:
            for endpoint in endpoints:
                assert answer_to(endpoint, message) == b"", message
        for pid, bytes_before in resident_before.items():
            assert resident_bytes(pid) - bytes_before < 8 << 20
        stop_file.touch()
        expect_success(job)
    assert pids_of_finished_workers(job) == first_pids
