"""If a scheduler signals one rank, all ranks learn of it after the same step
(farandole/preemption.py)."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from launched import CommandRun, command, run

import farandole

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from hosts import Hosts, reason_if_impossible

WORKER = str(Path(__file__).with_name("preempted_worker.py"))
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def steps_in(*outputs: str) -> list[str]:
    return re.findall(r"ends after step (\d+)", "".join(outputs))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mode", ["fast", "slow"])
def test_a_signal_to_one_rank_ends_all_ranks_after_the_same_step(mode: str, rank: int) -> None:
    words = ("run", "-n", "3", sys.executable, WORKER, mode)
    with CommandRun(*words, environment=ENVIRONMENT) as launched:
        launched.read_until("trains as", times=3)
        pids = dict(re.findall(r"^\[(\d)\] trains as (\d+)", launched.output, re.M))
        time.sleep(0.2)  # so that in the mode `slow`, rank 0 waits in received()
        os.kill(int(pids[str(rank)]), signal.SIGTERM)
        assert launched.end() == 0, launched.errors
    steps = steps_in(launched.output)
    assert len(steps) == 3
    assert len(set(steps)) == 1


def test_a_signal_to_the_launcher_lets_the_ranks_end_by_themselves() -> None:
    words = ("run", "-n", "2", sys.executable, WORKER)
    with CommandRun(*words, environment=ENVIRONMENT) as launched:
        launched.read_until("trains as", times=2)
        launched.process.send_signal(signal.SIGTERM)
        assert launched.end() == 128 + signal.SIGTERM
    steps = steps_in(launched.output)
    assert len(steps) == 2
    assert len(set(steps)) == 1


def test_signals_that_cannot_be_caught_are_an_error() -> None:
    previous_handler = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(farandole.CallError, match="SIGKILL cannot be caught"):
        farandole.PreemptionNotice([signal.SIGUSR1, signal.SIGKILL]).__enter__()
    assert signal.getsignal(signal.SIGUSR1) is previous_handler
    with (
        farandole.PreemptionNotice([signal.SIGUSR1]) as notice,
        pytest.raises(farandole.CallError, match="in use"),
    ):
        notice.__enter__()
    assert signal.getsignal(signal.SIGUSR1) is previous_handler
    with pytest.raises(farandole.CallError, match=r"signals must be a list of signals, .* got 3"):
        farandole.PreemptionNotice(3)  # type: ignore[arg-type]


@pytest.mark.skipif(bool(reason_if_impossible()), reason=reason_if_impossible())
@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_to_one_node_reaches_the_ranks_of_all_nodes(tmp_path: Path, node: int) -> None:
    secret = str(tmp_path / "secret")
    assert run("secret", secret).process.returncode == 0
    with Hosts(2) as hosts:
        nodes = []
        for number, host in enumerate(hosts):
            words = [command(), "run", "--join", hosts[0].endpoint(4713), "--nodes", "2", "-n", "2"]
            words += ["--node", str(number), "--secret", secret, sys.executable, WORKER]
            program, *arguments = host.command(*words)
            nodes.append(CommandRun(*arguments, program=program, environment=ENVIRONMENT))
        with nodes[0] as node_0, nodes[1] as node_1:
            for launched in (node_0, node_1):
                launched.read_until("trains as", times=2)
            nodes[node].process.send_signal(signal.SIGTERM)
            codes = [node_0.end(), node_1.end()]
    assert codes == [128 + signal.SIGTERM] * 2
    steps = steps_in(node_0.output, node_1.output)
    assert len(steps) == 4
    assert len(set(steps)) == 1
    assert "SIGTERM has ended it" in nodes[1 - node].errors
