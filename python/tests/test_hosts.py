"""Jobs over several hosts, which are network namespaces of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from job import command, everyday_and_long, start_command

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
from hosts import Host, Hosts, reason_if_impossible  # noqa: E402
from stranger_traffic import listening_endpoints  # noqa: E402

WHY_IMPOSSIBLE = reason_if_impossible()
pytestmark = pytest.mark.skipif(bool(WHY_IMPOSSIBLE), reason=WHY_IMPOSSIBLE)
TIMEOUT_SECONDS = 600
# All hosts have the same host name, and its address belongs to the loopback interface. So we must
# tell Gloo which interface it must use.
WORKER_WITH_GLOO = ["env", "GLOO_SOCKET_IFNAME=eth0", sys.executable, str(HERE / "worker.py")]
# A program that makes calls until the job ends. It ignores SIGTERM, so that each rank has time to
# print its error.
CALLING_PROGRAM = """
import os, signal
import numpy as np
from numpy_frontend import make_api
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd = make_api(True)
hvd.init()
hvd.barrier()
print(f"rank {hvd.rank()} is process {os.getpid()}", flush=True)
while True:
    total = hvd.allreduce(np.ones(1000, np.float32), op=hvd.Sum)
    assert (total == hvd.size()).all()
"""
TIMED_CALLS_PROGRAM = """
import time
import numpy as np
from numpy_frontend import make_api
hvd = make_api(True)
hvd.init()
for step in range(20):
    if hvd.rank() == step % 2:
        time.sleep(0.003)  # so that the other rank waits
    hvd.allreduce(np.ones(1000, np.float32))
"""
CANARY_BYTES = b"a tensor in clear"
CALL_NAME = b"a name that nobody else uses"
BROADCAST_PROGRAM = f"""
import numpy as np
from numpy_frontend import make_api
hvd = make_api(True)
hvd.init()
canaries = np.tile(np.frombuffer({CANARY_BYTES!r}, np.uint8), 1 << 16)
own = canaries if hvd.rank() == 0 else np.zeros_like(canaries)
assert (hvd.broadcast(own, 0, name={CALL_NAME.decode()!r}) == canaries).all()
"""
# A program that makes calls and checks each result. It ends when the file that its argument names
# exists.
CHECKING_PROGRAM = """
import os, sys
import numpy as np
from numpy_frontend import make_api
hvd = make_api(True)
hvd.init()
own = np.arange(30_000, dtype=np.int64) * (hvd.rank() + 1)
expected = np.arange(30_000, dtype=np.int64) * (hvd.size() * (hvd.size() + 1) // 2)
print("calls", flush=True)
calls = 0
while hvd.allreduce(np.array([os.path.exists(sys.argv[1])], np.int32), op=hvd.Sum)[0] == 0:
    assert (hvd.allreduce(own, op=hvd.Sum) == expected).all()
    calls += 1
print(f"checked {calls} results", flush=True)
"""


def start_process(host: Host, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    # The programs in this file import modules from this folder.
    return start_command(host.command(*words), {"PYTHONPATH": str(HERE)})


@contextmanager
def job(
    hosts: Hosts, workers: Sequence[int], secret: Path, *program: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start one launcher on each host, with these numbers of workers."""
    farandole = command(1)[0]
    if not secret.exists():
        subprocess.run([farandole, "secret", secret], check=True)
    options = ["--join", hosts[0].endpoint(4711), "--nodes", str(len(workers))]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                start_process(
                    hosts[node],
                    *(farandole, "run", *options, "--node", str(node), "--secret", str(secret)),
                    *("-n", str(count), *program),
                )
            )
            for node, count in enumerate(workers)
        ]


def run_program(hosts: Hosts, workers: Sequence[int], secret: Path, *program: str) -> list[str]:
    with job(hosts, workers, secret, *program) as launchers:
        texts = [launcher.communicate(timeout=TIMEOUT_SECONDS)[0] for launcher in launchers]
    codes = [launcher.returncode for launcher in launchers]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(texts)
    return texts


@pytest.mark.parametrize(
    "workers",
    everyday_and_long([(3, 1)], [(2, 2), (1, 1), (1, 1, 1, 1)]),
    ids=str,
)
def test_conformance(workers: tuple[int, ...], tmp_path: Path) -> None:
    with Hosts(len(workers)) as hosts:
        worker = [sys.executable, str(HERE / "worker.py"), "numpy_frontend:NumpyConformance"]
        texts = run_program(hosts, workers, tmp_path / "secret", *worker)
    assert sum(text.count("all checks passed") for text in texts) == sum(workers)


def test_conformance_with_ipv6_only(tmp_path: Path) -> None:
    with Hosts(2, v6_only=True) as hosts:
        worker = [sys.executable, str(HERE / "worker.py"), "numpy_frontend:NumpyConformance"]
        texts = run_program(hosts, (1, 2), tmp_path / "secret", *worker)
    assert sum(text.count("all checks passed") for text in texts) == 3


@pytest.mark.parametrize(
    "suite",
    everyday_and_long(
        ["torch_optimizer:OptimizerChecks", "jax_training:JaxTrainingChecks"],
        [
            "jax_compiled:JaxCompiledChecks",
            "tensorflow_training:TensorFlowTrainingChecks",
            "tensorflow_compiled:TensorFlowCompiledChecks",
            "keras_training:KerasTrainingChecks",
        ],
    ),
    ids=lambda suite: suite.split(":")[0],
)
def test_training_over_hosts_equals_one_process(suite: str, tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        worker = ["env", "JAX_PLATFORMS=cpu", sys.executable, str(HERE / "worker.py"), suite]
        texts = run_program(hosts, (2, 1), tmp_path / "secret", *worker)
    assert sum(text.count("all checks passed") for text in texts) == 3


def test_torch_distributed(tmp_path: Path) -> None:
    of_groups = ["torch_distributed:MessageChecks", "torch_distributed:MultiHostChecks"]
    suites = [*of_groups, "torch_hooks:HookChecks"]
    with Hosts(2) as hosts:
        texts = run_program(hosts, (2, 2), tmp_path / "secret", *WORKER_WITH_GLOO, *suites)
    assert sum(text.count("all checks passed") for text in texts) == 4


@pytest.mark.parametrize("workers", everyday_and_long([(2, 1)], [(2, 2)]), ids=str)
def test_torch_groups_that_only_their_members_make(
    workers: tuple[int, ...], tmp_path: Path
) -> None:
    suites = ["torch_groups:GroupsOverHosts"]
    if workers == (2, 2):
        suites.append("torch_groups:MeshOverHosts")
    with Hosts(2) as hosts:
        texts = run_program(hosts, workers, tmp_path / "secret", *WORKER_WITH_GLOO, *suites)
    assert sum(text.count("all checks passed") for text in texts) == sum(workers)


def test_the_timelines_of_hosts_with_different_clocks_agree(tmp_path: Path) -> None:
    """The clock of the second host is 5,000 s ahead. The file of node 0 gets the events of both
    hosts, and all times in it are those of one clock."""
    farandole, secret = command(1)[0], str(tmp_path / "secret")
    subprocess.run([farandole, "secret", secret], check=True)
    with Hosts(2) as hosts, ExitStack() as stack:
        launchers = []
        for node, host in enumerate(hosts):
            words = ["unshare", "--time", "--monotonic", "5000"] if node == 1 else []
            words += [farandole, "run", "--join", hosts[0].endpoint(4711), "--nodes", "2"]
            words += ["--node", str(node), "--secret", secret, "-n", "1", "--timeline"]
            words += [str(tmp_path / f"{node}.json"), sys.executable, "-c", TIMED_CALLS_PROGRAM]
            launchers.append(stack.enter_context(start_process(host, *words)))
        texts = [launcher.communicate(timeout=TIMEOUT_SECONDS)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], texts
    events = json.loads((tmp_path / "0.json").read_text())
    labels = [e["args"]["labels"] for e in events if e.get("name") == "process_labels"]
    errors = [int(label.removeprefix("clock ± ").removesuffix(" µs")) for label in labels]
    assert len(errors) == 2
    # The trace shows two phases of each call: first it waits for the other rank, then it moves the
    # data.
    times = {
        (rank, phase): [e["ts"] for e in events if (e["pid"], e["ph"]) == (rank, phase)]
        for rank in range(2)
        for phase in "BE"
    }
    submit_times = [times[rank, "B"][::2] for rank in range(2)]
    end_times = [times[rank, "E"][1::2] for rank in range(2)]
    assert (
        len(submit_times[0]) == len(submit_times[1]) == len(end_times[0]) == len(end_times[1]) == 20
    )
    # No rank completes a call before the other rank has submitted this call.
    for call in range(20):
        for rank in range(2):
            assert end_times[rank][call] >= submit_times[1 - rank][call] - sum(errors)


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_death_ends_the_job_on_all_hosts(rank: int, tmp_path: Path) -> None:
    """The other host has only one rank, so rank 2 of this host has no connection to it."""
    program = [sys.executable, "-c", CALLING_PROGRAM]
    with Hosts(2) as hosts, job(hosts, (3, 1), tmp_path / "secret", *program) as launchers:
        texts = ["", ""]
        node = 0 if rank < 3 else 1
        while not (pid_line := re.search(rf"rank {rank} is process (\d+)", texts[node])):
            line = launchers[node].stdout.readline()  # type: ignore[union-attr]
            assert line, texts[node]
            texts[node] += line
        os.kill(int(pid_line[1]), signal.SIGKILL)
        for any_node, launcher in enumerate(launchers):
            texts[any_node] += launcher.communicate(timeout=TIMEOUT_SECONDS)[0]
    assert launchers[node].returncode == 128 + signal.SIGKILL, texts
    assert launchers[1 - node].returncode != 0, texts
    survivors = [(3, 1)[any_node] - (any_node == node) for any_node in range(2)]
    for text, count in zip(texts, survivors, strict=True):
        assert re.search(rf"rank {rank} \((\S+, )?pid {pid_line[1]}\)", text), text
        assert (count == 0) or ("has died" in text), text


@pytest.mark.parametrize("seed", everyday_and_long(range(8), range(8, 100)))
def test_ranks_that_end_right_after_their_last_call(seed: int, tmp_path: Path) -> None:
    """The data that a rank has sent must arrive, even if this rank ends before the receivers have
    read it."""
    workers = ((1, 1), (2, 1), (1, 1, 1), (1, 2))[seed % 4]
    program = ["env", f"FARANDOLE_UNSEALED_DATA={seed // 4 % 2}", sys.executable]
    with Hosts(len(workers)) as hosts:
        program += [str(HERE / "random_ends.py"), str(seed)]
        texts = run_program(hosts, workers, tmp_path / "secret", *program)
    assert sum(text.count("all checks passed") for text in texts) == sum(workers)


def test_a_rank_that_is_often_stopped_slows_the_others_down(tmp_path: Path) -> None:
    """The sender may get far ahead of the stopped rank, but must not treat this rank as lost."""
    program = [sys.executable, str(HERE / "slow_receiver.py")]
    with Hosts(2) as hosts:
        texts = run_program(hosts, (2, 2), tmp_path / "secret", *program)
    assert sum(text.count("all checks passed") for text in texts) == 4


def test_connections_of_strangers_do_not_disturb_a_job(tmp_path: Path) -> None:
    """Strangers attack the launcher of node 0 and all workers while the job runs."""
    end = tmp_path / "end"
    program = [sys.executable, "-c", CHECKING_PROGRAM, str(end)]
    with Hosts(2) as hosts, job(hosts, (2, 1), tmp_path / "secret", *program) as launchers:
        texts = ["", ""]
        for node, (count, launcher) in enumerate(zip((2, 1), launchers, strict=True)):
            while texts[node].count("calls") < count:
                line = launcher.stdout.readline()  # type: ignore[union-attr]
                assert line, texts[node]
                texts[node] += line
        for host in hosts:
            words = [sys.executable, str(TOOLS / "stranger_traffic.py"), *listening_endpoints(host)]
            words += ["--idle", "200", "--dribbling", "20", "--messages", "1000"]
            with start_process(host, *words, "--seconds", "3") as strangers:
                report = json.loads(strangers.communicate(timeout=TIMEOUT_SECONDS)[0])
            assert sum(report["messages"].values()) == 1000
            assert report["held"] > 0, report
            assert (report["answer_bytes"], report["accepted"]) == (0, 0), report
        end.touch()
        for node, launcher in enumerate(launchers):
            texts[node] += launcher.communicate(timeout=TIMEOUT_SECONDS)[0]
    assert [launcher.returncode for launcher in launchers] == [0, 0], texts
    checked_counts = [
        int(number) for text in texts for number in re.findall(r"checked (\d+) results", text)
    ]
    assert len(checked_counts) == 3
    assert len(set(checked_counts)) == 1
    assert checked_counts[0] > 0


def has_tensor(packets: Path) -> bool:
    return packets.stat().st_size > len(CANARY_BYTES) << 16


def packets_of_a_broadcast(folder: Path, unsealed_data: bool) -> bytes:
    """Return the packets that a job on two hosts has sent over the network in a broadcast."""
    recording = [sys.executable, str(TOOLS / "record_packets.py"), str(folder / "packets")]
    with Hosts(2) as hosts, start_process(hosts[0], *recording) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "recording\n"
        program = ["env", f"FARANDOLE_UNSEALED_DATA={unsealed_data:d}"]
        program += [sys.executable, "-c", BROADCAST_PROGRAM]
        texts = run_program(hosts, (1, 1), folder / "secret", *program)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not has_tensor(folder / "packets") and time.monotonic() < deadline:
            time.sleep(0.05)  # the recorder may write the last packets after the job's end
    has_warned = "FARANDOLE_UNSEALED_DATA is set: everybody on the network can read" in "".join(
        texts
    )
    assert has_warned == unsealed_data
    assert has_tensor(folder / "packets"), "the tensor was not sent between the hosts"
    packets = (folder / "packets").read_bytes()
    assert (folder / "secret").read_bytes() not in packets
    return packets


def test_tensors_are_encrypted_on_the_network(tmp_path: Path) -> None:
    packets = packets_of_a_broadcast(tmp_path, unsealed_data=False)
    assert CANARY_BYTES not in packets
    assert CALL_NAME not in packets


def test_with_unsealed_data_only_tensors_are_unencrypted(tmp_path: Path) -> None:
    packets = packets_of_a_broadcast(tmp_path, unsealed_data=True)
    assert CANARY_BYTES * 100 in packets
    assert CALL_NAME not in packets


def test_conformance_with_unsealed_data(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        worker = ["env", "FARANDOLE_UNSEALED_DATA=1", sys.executable, str(HERE / "worker.py")]
        worker += ["numpy_frontend:NumpyConformance"]
        texts = run_program(hosts, (2, 1), tmp_path / "secret", *worker)
    assert sum(text.count("all checks passed") for text in texts) == 3
