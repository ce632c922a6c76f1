"""Process sets in elastic jobs: workers die and join at random, and calls go on in all sets.

To run more jobs, each with other sets and other deaths:

    python tests/cluster/test_elastic_process_sets.py --jobs 100 [--seed 7] [--changes 20]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launched import CommandRun, kill

JOBS, CHANGES = 4, 10
WORKER = str(Path(__file__).with_name("process_set_worker.py"))
PROGRESS_PATTERN = re.compile(r"worker (\d+) \(pid (\d+)\) has epoch (\d+): rank (\d+) of (\d+)")
QUICK_RESTART = ("--cooldown-range", "0,0")


class RandomJob:
    """A job whose workers are killed at random. At least one worker that has the state always
    stays."""

    def __init__(self, seed: str, folder: Path, changes: int) -> None:
        self.generator = random.Random(f"deaths {seed}")
        self.folder, self.changes_wanted = folder, changes
        self.workers = self.generator.choice((3, 4, 5))
        self.sizes: set[int] = set()  # the sizes of the groups that were formed
        self.killed: set[int] = set()
        self.changes = 0
        flags = ("-n", str(self.workers), "--min-workers", "1", *QUICK_RESTART)
        self.launched = CommandRun(
            *("run", *flags, sys.executable, WORKER, seed, str(folder)),
            environment={"SET_WORKERS": str(self.workers), "OMP_NUM_THREADS": "1"},
        )

    def run(self) -> int:
        with self.launched as launched:
            assert launched.process.stdout is not None
            members: dict[int, int] = {}  # the processes of the newest epoch, by rank
            newest_epoch = 0
            for line in launched.process.stdout:
                launched.output += line
                match = PROGRESS_PATTERN.search(line)
                if not match:
                    continue
                pid, epoch, rank, size = map(int, match.groups()[1:])
                if epoch < newest_epoch or pid in self.killed:
                    continue
                if epoch > newest_epoch:
                    newest_epoch, members = epoch, {}
                    self.changes += 1
                members[rank] = pid
                self.sizes.add(size)
                if self.changes > self.changes_wanted:
                    (self.folder / "end").touch()
                # If the job has all its workers, its group changes only after a kill.
                elif len(members) == self.workers or (
                    len(members) > 1 and self.generator.random() < 0.3
                ):
                    self._kill_some(members)
            code = launched.end()
            assert launched.remaining_processes() == []
        return code

    def _kill_some(self, members: dict[int, int]) -> None:
        """Kill some of the members, but not all, and remove them from `members`."""
        time.sleep(self.generator.choice((0, 0.01, 0.05)))
        for rank in self.generator.sample(
            list(members), self.generator.randint(1, len(members) - 1)
        ):
            pid = members.pop(rank)
            self.killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def failure_of_job(job: RandomJob, code: int) -> str:
    """Return a description of the job's failure, or an empty text."""
    # These lines are no failures: after two deaths in a row, a rank prints why it restores its
    # state again.
    errors = re.sub(r"farandole: rank \d+: failure \d+ since .*", "", job.launched.errors)
    if match := re.search(r"\w+Error.*|exited with code [^0].*", errors):
        return f"a worker has failed by itself: {match[0]}"
    if code != 0:
        return f"the job has ended with code {code}"
    return "" if "ends well" in job.launched.output else "no worker has ended well"


@pytest.mark.parametrize("number", range(JOBS))
def test_calls_go_on_in_all_process_sets(number: int, tmp_path: Path) -> None:
    seed = f"{os.environ.get('FARANDOLE_TEST_SEED') or time.time_ns() % 1_000_000}.{number}"
    job = RandomJob(seed, tmp_path, CHANGES)
    failure = failure_of_job(job, job.run())
    messages = f"{job.launched.output}\n{job.launched.errors}"
    assert not failure, f"seed {seed}: {failure}\n{messages}\nseed {seed}: {failure}"


def test_a_new_worker_with_other_process_sets_ends_the_training(tmp_path: Path) -> None:
    program = (sys.executable, WORKER, "1", str(tmp_path), "other sets")
    with CommandRun(
        *("run", "-n", "3", "--min-workers", "1", *QUICK_RESTART, *program),
        environment={"SET_WORKERS": "3"},
    ) as launched:
        launched.read_until("has epoch", 3)
        kill(launched, 1)
        assert launched.end() == 1
    text = r"rank \d calls init with the groups \[\[.*\]\], rank \d with \[\[.*\]\]; all ranks must"
    assert re.search(text, launched.errors), launched.errors


OPTIMIZER_PROGRAM = """
import os, sys, time, torch
import farandole.torch as hvd
number, folder = int(os.environ["FARANDOLE_ELASTIC_WORKER"]), sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Linear(3000, 4)
pair = hvd.ProcessSet([0, 1])
while number > 2 and not os.path.exists(f"{folder}/join.{number}"):
    time.sleep(0.01)
hvd.init(process_sets=[pair, hvd.ProcessSet([0, 2])])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=pair)
state = hvd.elastic.TorchState(model, optimizer, step=0)


def data_of(rank):
    return torch.full((1, 3000), float(rank + 1)) + state.step % 5


def train_in_pair():
    optimizer.zero_grad()
    model(data_of(hvd.rank())).sum().backward()
    expected = (data_of(0) + data_of(1)) / 2
    assert torch.equal(model.weight.grad, expected.expand(4, 3000)), "wrong gradients"
    optimizer.step()
    both = hvd.allgather(model.weight.detach(), process_set=pair).reshape(2, 4, 3000)
    assert torch.equal(both[0], both[1]), "the weights differ"


@hvd.elastic.run
def train(state):
    while not hvd.allreduce(torch.tensor([float(os.path.exists(folder + "/end"))])).item() == 1:
        if hvd.size() > 1 and pair.included():
            train_in_pair()
        state.step += 1
        if state.step % 5 == 0:
            print(f"worker {number} trains as rank {hvd.rank()} of {hvd.size()}", flush=True)
        state.commit()
        time.sleep(0.01)


train(state)
"""


def test_an_optimizer_goes_on_in_its_process_set(tmp_path: Path) -> None:
    program = (sys.executable, "-c", OPTIMIZER_PROGRAM, str(tmp_path))
    with CommandRun("run", "-n", "3", "--min-workers", "2", *QUICK_RESTART, *program) as launched:
        launched.read_until("worker 2 trains as rank 2 of 3")
        kill(launched, 1)
        # Worker 2 becomes a member of the process set. It has not used its optimizer yet.
        launched.read_until("worker 2 trains as rank 1 of 2")
        (tmp_path / "join.3").touch()
        launched.read_until("worker 3 trains as rank 2 of 3")
        kill(launched, 0)
        launched.read_until("of 2", launched.output.count("of 2") + 3)
        (tmp_path / "join.4").touch()
        launched.read_until("worker 4 trains as rank 2 of 3")
        (tmp_path / "end").touch()
        assert launched.end() == 0, launched.errors


TAPE_PROGRAM = """
import os, sys, time, tensorflow as tf
import farandole.tensorflow as hvd
number, folder = int(os.environ["FARANDOLE_ELASTIC_WORKER"]), sys.argv[1]
while number > 2:  # new workers do not join; the job kills them at its end
    time.sleep(1)
pair = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[pair, hvd.ProcessSet([0, 2])])
x = tf.Variable(1.0)
state = hvd.elastic.TensorFlowState([], step=0)


@tf.function
def gradient(factor):
    with hvd.DistributedGradientTape(tf.GradientTape(), process_set=pair) as tape:
        loss = x * factor
    return tape.gradient(loss, x)


@hvd.elastic.run
def train(state):
    while hvd.allreduce(tf.constant(float(os.path.exists(folder + "/end")))) < 1:
        factor = float(1 + hvd.rank() + state.step % 5)
        expected = 1.5 + state.step % 5 if pair.included() else factor
        assert float(gradient(tf.constant(factor))) == expected, "a wrong gradient"
        state.step += 1
        print(f"worker {number} trains as rank {hvd.rank()} of {hvd.size()}", flush=True)
        state.commit()
        time.sleep(0.01)
    assert gradient.experimental_get_tracing_count() == 1


train(state)
"""


def test_a_function_goes_on_when_its_rank_becomes_a_member(tmp_path: Path) -> None:
    """TensorFlow traces the function only once. On worker 2, it does this before the worker is a
    member of the process set."""
    program = (sys.executable, "-c", TAPE_PROGRAM, str(tmp_path))
    with CommandRun("run", "-n", "3", "--min-workers", "2", *QUICK_RESTART, *program) as launched:
        launched.read_until("worker 2 trains as rank 2 of 3")
        kill(launched, 1)
        launched.read_until("worker 2 trains as rank 1 of 2")
        (tmp_path / "end").touch()
        assert launched.end() == 0, launched.errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first job")
    parser.add_argument("--changes", type=int, default=CHANGES, help="in each job")
    arguments = parser.parse_args()
    changes = 0
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        with tempfile.TemporaryDirectory() as folder:
            job = RandomJob(str(seed), Path(folder), arguments.changes)
            failure = "it does not end"
            with suppress(TimeoutError):
                failure = failure_of_job(job, job.run())
        changes += job.changes
        sizes = ", ".join(map(str, sorted(job.sizes)))
        print(f"seed {seed}: {job.changes} changes, sizes {sizes} {failure}", flush=True)
        if failure:
            sys.exit(f"{job.launched.output}\n{job.launched.errors}\nseed {seed}: {failure}")
    print(f"{changes} changes")


if __name__ == "__main__":
    main()
