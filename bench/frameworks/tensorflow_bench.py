#!/usr/bin/env python3
"""Compare training steps whose gradients are combined by Farandole with steps that use TensorFlow's
own MultiWorkerMirroredStrategy.

Two processes belong to a job of Farandole and also to a cluster of TensorFlow. In each round, both
run the same steps on the same model in each of three ways: with DistributedGradientTape, with the
strategy's all_reduce() in its default mode, which merges all gradients into one tensor, and with
all_reduce() that sends each gradient alone (bytes_per_pack=1). The script checks that all ways give
the same gradients, and that all ranks end with the same variables. It starts the processes itself:
`.venv/bin/python bench/frameworks/tensorflow_bench.py`. With --latency, it measures instead how
long one allreduce of 64 bytes takes in several ways.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RANKS = 2
BATCH_SIZE = 8
LEARNING_RATE = 1e-4
ONE_BITS = 0x3FF0000000000000  # the bits of 1.0 in float64
# For each model: how many dense layers, and their width.
MODELS = {"100 layers of 64 x 64": (100, 64), "2 layers of 2048 x 2048": (2, 2048)}
Step = Callable[[], Sequence[Any]]  # returns the combined gradients


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=20, help="steps of each way in a round")
    parser.add_argument("--latency", action="store_true", help="measure single small calls")
    parser.add_argument("--calls", type=int, default=1000, help="calls of each way in a round")
    return parser.parse_args()


def start_workers() -> int:
    command = Path(sys.executable).with_name("farandole")
    words = [str(command), "run", "-n", str(RANKS), "--tf-config", "--prefix", ""]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, *sys.argv]
    return subprocess.run([*words, *program], check=False, env=os.environ | variables).returncode


class Model:
    """Dense layers with a loss, and a step for each way to combine gradients."""

    def __init__(self, tf: Any, hvd: Any, layers: int, width: int) -> None:
        self.tf, self.hvd = tf, hvd
        tf.random.set_seed(1)
        scale = width**-0.5
        self.variables = []
        for _ in range(layers):
            self.variables.append(tf.Variable(tf.random.normal([width, width], 0.0, scale)))
            self.variables.append(tf.Variable(tf.zeros([width])))
        tf.random.set_seed(2 + hvd.rank())
        self.x, self.y = (
            tf.random.normal([BATCH_SIZE, width]),
            tf.random.normal([BATCH_SIZE, width]),
        )

    def loss(self) -> Any:
        x = self.x
        for kernel, bias in zip(self.variables[::2], self.variables[1::2], strict=True):
            x = x + self.tf.tanh(x @ kernel + bias)
        return self.tf.reduce_mean((x - self.y) ** 2)

    def apply(self, gradients: Sequence[Any]) -> None:
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)

    def our_step(self) -> Step:
        def step() -> Sequence[Any]:
            with self.hvd.DistributedGradientTape(self.tf.GradientTape()) as tape:
                loss = self.loss()
            gradients: Sequence[Any] = tape.gradient(loss, self.variables)
            self.apply(gradients)
            return gradients

        run: Step = self.tf.function(step)
        return run

    def their_step(self, strategy: Any, bytes_per_pack: int) -> Step:
        tf = self.tf
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)

        def replica_step() -> Sequence[Any]:
            with tf.GradientTape() as tape:
                loss = self.loss()
            context = tf.distribute.get_replica_context()
            local = tape.gradient(loss, self.variables)
            gradients: Sequence[Any] = context.all_reduce(
                tf.distribute.ReduceOp.MEAN, local, options
            )
            self.apply(gradients)
            return gradients

        run: Step = tf.function(lambda: strategy.run(replica_step))
        return run


def latency_ways() -> dict[str, Callable[[int], Any]]:
    """Return functions that make this many allreduces of 64 bytes and return the last result."""
    import tensorflow as tf  # noqa: PLC0415

    import farandole.tensorflow as hvd  # noqa: PLC0415
    from farandole import core, lifecycle  # noqa: PLC0415
    from farandole.tensorflow import ops  # noqa: PLC0415

    x = tf.range(16.0) + hvd.rank()
    source, target = x.numpy().copy(), x.numpy().copy()
    common_arguments = {
        "group": 0,
        "reduce_op": int(hvd.Sum),
        "prescale": ONE_BITS,
        "postscale": ONE_BITS,
    }
    allreduce = ops._FUNCTIONS["allreduce"]

    def engine(count: int) -> Any:
        memory = (source.ctypes.data, target.ctypes.data)
        view = core.BufferView(core.dtypes["float32"], (16,), *memory)
        for _ in range(count):
            call = core.allreduce("latency", 0, view, int(hvd.Sum), 1.0, 1.0)
            lifecycle.engine().run(call)
        return target

    def operation(count: int) -> Any:
        for _ in range(count):
            (result,) = allreduce(
                tensors=[x], names=["latency"], job=0, wait_ms=100, **common_arguments
            )
        return result.numpy()

    def function(count: int) -> Any:
        for _ in range(count):
            result = hvd.allreduce(x, op=hvd.Sum, name="latency")
        return result.numpy()

    @tf.function
    def loop(count: Any) -> Any:
        result = x
        for _ in tf.range(count):
            result = hvd.allreduce(x, op=hvd.Sum, name="latency")
        return result

    def identity(count: int) -> Any:
        for _ in range(count):
            result = tf.identity(x)
        return hvd.allreduce(result, op=hvd.Sum).numpy()

    return {
        "the engine from Python": engine,
        "an eager operation": operation,
        "hvd.allreduce": function,
        "in a loop of a function": lambda count: loop(tf.constant(count)).numpy(),
        "tf.identity, to compare": identity,
    }


def measure_latency(options: argparse.Namespace) -> None:
    import farandole.tensorflow as hvd  # noqa: PLC0415

    hvd.init()
    ways = latency_ways()
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, run in ways.items():
            hvd.barrier()
            begin = time.perf_counter()
            result = run(options.calls)
            seconds = time.perf_counter() - begin
            expected = [RANKS * i + sum(range(RANKS)) for i in range(16)]
            assert result.tolist() == expected, name
            if number > 0:  # the first round warms up
                rounds[name].append(seconds / options.calls * 1e6)
    if hvd.rank() == 0:
        print(f"an allreduce of 64 bytes, {RANKS} processes: µs of the median round [least, most]")
        for name, times in rounds.items():
            print(
                f"{name:<26}{statistics.median(times):>8.1f} [{min(times):.1f}, {max(times):.1f}]"
            )


def seconds_of(step: Step, steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        gradients = step()
    gradients[-1].numpy()  # waits until the last step is done
    return time.perf_counter() - begin


def measure(options: argparse.Namespace) -> None:
    import tensorflow as tf  # noqa: PLC0415 - the process that starts the workers needs none of it

    import farandole.tensorflow as hvd  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    hvd.init()
    assert strategy.num_replicas_in_sync == hvd.size() == RANKS
    if hvd.rank() == 0:
        print(f"TensorFlow {tf.__version__}, {RANKS} processes, steps per second, medians")
        print(f"{'model':<26}{'farandole':>10}{'merged':>9}{'ratio':>8}{'single':>9}{'ratio':>8}")
    for name, (layers, width) in MODELS.items():
        model = Model(tf, hvd, layers, width)
        ways = [model.our_step(), model.their_step(strategy, 0), model.their_step(strategy, 1)]
        start = [variable.numpy() for variable in model.variables]
        results = []
        for step in ways:  # the first step of each way also traces it
            for variable, value in zip(model.variables, start, strict=True):
                variable.assign(value)
            results.append([gradient.numpy() for gradient in step()])
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                assert abs(one - two).max() <= 1e-5 * abs(one).max() + 1e-9, name
        rounds = []
        for _ in range(options.rounds):
            row = []
            for step in ways:
                hvd.barrier()
                row.append(options.steps / seconds_of(step, options.steps))
            rounds.append(row)
        hvd.check_parameters(model.variables)
        if hvd.rank() == 0:
            report(name, rounds)


def report(name: str, rounds: list[list[float]]) -> None:
    ours, merged, single = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = [statistics.median(row[0] / row[i] for row in rounds) for i in (1, 2)]
    print(
        f"{name:<26}{ours:>10.1f}{merged:>9.1f}{ratios[0]:>7.2f}x{single:>9.1f}{ratios[1]:>7.2f}x",
        flush=True,
    )
    least = [min(row[0] / row[i] for row in rounds) for i in (1, 2)]
    most = [max(row[0] / row[i] for row in rounds) for i in (1, 2)]
    print(f"{'':<26}{'':>19}[{least[0]:.2f}, {most[0]:.2f}]{'':>6}[{least[1]:.2f}, {most[1]:.2f}]")


if __name__ == "__main__":
    arguments = parse_arguments()
    if "cluster" not in json.loads(os.environ.get("TF_CONFIG", "{}")):
        sys.exit(start_workers())
    if arguments.latency:
        measure_latency(arguments)
    else:
        measure(arguments)
