"""The backend of torch.distributed in elastic jobs. After a change of the job, the program makes
its groups again."""

from __future__ import annotations

import re
import sys

import pytest
from launched import CommandRun, run
from test_elastic import elastic_words, pids_of_finished_workers

FIRST_LINES = """
import os, signal, sys, time
import numpy as np, torch, torch.distributed as dist
import farandole.torch as hvd
from torch.nn.parallel import DistributedDataParallel
number = int(os.environ["FARANDOLE_ELASTIC_WORKER"])
"""
# The program of docs/elastic.md, with checks of messages and groups after each change.
TRAINING_PROGRAM = f"""{FIRST_LINES}
victim, batches, sizes = int(sys.argv[1]), 120, (3000, 5)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, factors):
        return sum((one * factor).sum() for one, factor in zip(self.weights, factors))

def gradients(batch):  # whole numbers, so that sums do not depend on the order
    source = np.random.default_rng(batch)
    return [torch.tensor(source.integers(-99, 99, size), dtype=torch.float32) for size in sizes]

def die(gradient):
    if number == victim and state.batch >= batches // 4:
        os.kill(os.getpid(), signal.SIGKILL)

def check_messages_and_groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.zeros(100)
    sending = dist.isend(torch.arange(100) * (rank + 1.0), (rank + 1) % size)
    sender = dist.recv(got)
    sending.wait()
    assert sender == (rank - 1) % size and torch.equal(got, torch.arange(100) * (sender + 1.0))
    ranks = list(range(0, size, 2))
    group = dist.new_group(ranks)
    if rank in ranks:
        dist.all_reduce(got := torch.arange(100) * (rank + 1.0), group=group)
        assert torch.equal(got, torch.arange(100) * (sum(ranks) + len(ranks))), got

model = Model()
model.weights[1].register_hook(die)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hvd.init()
state = hvd.elastic.TorchState(model, optimizer, batch=0)

@hvd.elastic.run
def train(state):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("farandole", init_method="farandole://")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (hvd.rank(), hvd.size())
    print(f"worker {{number}} is one of {{size}}", flush=True)
    check_messages_and_groups()
    ddp = DistributedDataParallel(model)
    while state.batch < batches:
        dist.all_reduce(newest := torch.tensor([number]), dist.ReduceOp.MAX)
        if state.batch < batches // 2 or newest >= 3:
            optimizer.zero_grad()
            loss = ddp(gradients(state.batch + rank)) * size
            loss.backward()
            optimizer.step()
            state.batch += size
        state.commit()
        time.sleep(0.005)

train(state)
totals = [sum(parts) for parts in zip(*map(gradients, range(state.batch)))]
for one, total in zip(model.weights, totals):
    assert torch.equal(one.data, -total)
print(f"worker {{number}} (pid {{os.getpid()}}) has the right sum", flush=True)
"""


@pytest.mark.parametrize("lost_worker", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_training_with_ddp_goes_on(lost_worker: int) -> None:
    """The other workers keep their processes, and a new worker joins them."""
    with CommandRun(*elastic_words(3, "-c", TRAINING_PROGRAM, str(lost_worker))) as job:
        assert job.end() == 0, job.output + job.errors
    assert pids_of_finished_workers(job).keys() == {0, 1, 2, 3} - {lost_worker}
    assert f"worker {lost_worker} (pid" in job.errors and "was killed by signal 9" in job.errors
    assert job.output.count("is one of 3") == 6


CALLS_PROGRAM = f"""{FIRST_LINES}
def say(name, call):
    try:
        call()
        print(f"{{number}} {{name}}: done", flush=True)
    except hvd.FarandoleError as error:
        print(f"{{number}} {{name}}: {{type(error).__name__}}: {{error}}", flush=True)

def all_calls():
    ones = torch.ones(3)
    say("all_reduce", lambda: dist.all_reduce(ones))
    say("broadcast", lambda: dist.broadcast(ones, 0))
    say("all_gather", lambda: dist.all_gather_object([None] * 3, 5))
    say("barrier", dist.barrier)
    say("send", lambda: dist.send(ones, 1))
    say("recv", lambda: dist.recv(ones, 1))
    say("new_group", lambda: dist.new_group([0, 1]))

hvd.init()
state = hvd.elastic.TorchState(batch=0)
pending = []

@hvd.elastic.run
def train(state):
    if not pending:
        dist.init_process_group("farandole", init_method="farandole://")
        dist.barrier()
        if number != 1:  # before the death, because a later call would not be pending
            pending.append(dist.all_reduce(torch.ones(3), async_op=True))
        hvd.barrier()
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        say("lost pending", pending[0].wait)
        all_calls()
        pending[0].wait()
    say("old pending", pending[0].wait)
    all_calls()
    dist.destroy_process_group()
    dist.init_process_group("farandole", init_method="farandole://")
    dist.all_reduce(total := torch.arange(5) * (dist.get_rank() + 1))
    print(f"{{number}} has {{total.tolist()}}", flush=True)

train(state)
"""
CALL_NAMES = ("all_reduce", "broadcast", "all_gather", "barrier", "send", "recv", "new_group")


def test_calls_after_a_loss_say_what_to_do() -> None:
    flags = ("--cooldown-range", "60,60")
    job = run(*elastic_words(3, "-c", CALLS_PROGRAM, flags=flags))
    messages = job.output + job.errors
    assert job.process.returncode == 0, messages
    for worker in (0, 2):
        lines = re.findall(rf"^\[{worker}\] {worker} (.*)$", job.output, re.MULTILINE)
        assert len(lines) == 2 * (1 + len(CALL_NAMES)) + 1, messages
        loss_lines, old_lines = lines[: 1 + len(CALL_NAMES)], lines[1 + len(CALL_NAMES) : -1]
        for name, line in zip(("lost pending", *CALL_NAMES), loss_lines, strict=True):
            pattern = rf"{name}: GroupLostError: .*rank 1 \(pid \d+\) has died.*destroy_process_gro"
            assert re.match(pattern, line), line
        assert re.match(r"old pending: GroupLostError: .*rank 1 \(pid \d+\) has died", old_lines[0])
        for name, line in zip(CALL_NAMES, old_lines[1:], strict=True):
            pattern = f"{name}: MisuseError: this process group was made before .*destroy_process_"
            assert re.match(pattern, line), line
        assert lines[-1] == "has [0, 3, 6, 9, 12]"


TOO_EARLY_PROGRAM = f"""{FIRST_LINES}
hvd.init()
dist.init_process_group("farandole", init_method="farandole://")
"""
INSIDE_FUNCTION_PROGRAM = f"""{FIRST_LINES}
hvd.init()
state = hvd.elastic.TorchState(batch=0)

@hvd.elastic.run
def train(state):
    dist.init_process_group("farandole"%s)

train(state)
"""


@pytest.mark.parametrize(
    ("program", "hosts", "text"),
    [
        (
            TOO_EARLY_PROGRAM,
            ("-n", "2"),
            "init_process_group() was called before this process got the state",
        ),
        (
            INSIDE_FUNCTION_PROGRAM % "",
            ("-n", "2"),
            'call init_process_group("farandole", init_method="farandole:',
        ),
        (
            INSIDE_FUNCTION_PROGRAM % ', init_method="farandole://"',
            ("-H", "127.0.0.1:1,127.0.0.2:1"),
            "torch.distributed cannot be used in an elastic job over several hosts",
        ),
    ],
    ids=["before the function", "by the environment", "over several hosts"],
)
def test_groups_that_could_not_be_made_again_are_rejected(
    program: str, hosts: tuple[str, ...], text: str
) -> None:
    job = run("run", *hosts, "--min-workers", "1", sys.executable, "-c", program)
    assert job.process.returncode == 1
    assert text in job.errors, job.errors
