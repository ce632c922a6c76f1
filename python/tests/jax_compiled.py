"""Calls inside jit, scan, cond, vmap, grad and checkpoint, compared with NumPy.

The ranks compile their programs with different options of XLA. With ONE_CORE=1 in the environment,
each rank uses one core, so that XLA has only one thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

if os.environ.get("ONE_CORE") == "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if int(os.environ.get("FARANDOLE_RANK", "0")) % 2:
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_enable_concurrency_optimized_scheduler=true --xla_backend_optimization_level=0"
    )

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_frontend import JaxFrontend
from random_steps import Step
from reference import Array, input_of
from suite import Suite

import farandole.jax as hvd
from farandole.jax.failures import find_cause
from farandole.jax.primitive import wait_for_programs

ArrayFunction = Callable[[jax.Array], jax.Array]
RUNS = 3


class JaxStep(Step):
    def call(self, x: jax.Array) -> jax.Array:
        return getattr(hvd, self.operation)(x, **self.options(hvd))

    def run(self, x: jax.Array) -> jax.Array:
        if self.context == "jit":
            return INNER_FUNCTIONS.setdefault(repr(self), jax.jit(self.call))(x)
        if self.context == "scan":
            return jax.lax.scan(lambda carry, _: (carry, self.call(carry)), x, None, length=2)[1][1]
        if self.context == "cond":
            return jax.lax.cond(x.size >= 0, self.call, self.call, x)
        if self.context == "vmap":
            return jax.vmap(self.call)(jnp.stack([x, x]))[1]
        return self.call(x)


INNER_FUNCTIONS: dict[str, ArrayFunction] = {}  # jit functions that several programs share


class JaxCompiledChecks(Suite):
    def __init__(self) -> None:
        super().__init__(JaxFrontend())

    def random_step(self, generator: random.Random) -> JaxStep:
        contexts = ["", "", "jit", "scan", "cond", "vmap"]
        return JaxStep.draw(generator, [hvd.global_process_set, *self.groups], contexts)

    def check_random_programs(self) -> None:
        """Each rank starts several programs, each of them several times, without waiting for
        results."""
        for seed in range(int(os.environ.get("JAX_PROGRAMS", "12"))):
            generator, own_generator = (
                random.Random(seed),
                random.Random((seed, self.rank).__hash__()),
            )
            steps = [self.random_step(generator) for _ in range(generator.randint(1, 9))]
            own_steps = [(i, step) for i, step in enumerate(steps) if self.rank in step.group.ranks]
            is_repeated = generator.random() < 0.5

            def program(
                *inputs: Any, own_steps: Any = own_steps, is_repeated: bool = is_repeated
            ) -> Any:
                results = [step.run(x) for (_, step), x in zip(own_steps, inputs, strict=True)]
                if is_repeated:  # make the same calls once more
                    results += [step.run(x) for (_, step), x in zip(own_steps, inputs, strict=True)]
                return results

            compiled_program = jax.jit(program)
            results = []
            for run_number in range(RUNS):
                inputs = [
                    self.tensor(step.shape, step.dtype, seed=100 * run_number + i)
                    for i, step in own_steps
                ]
                time.sleep(own_generator.uniform(0, 0.002))
                results.append(compiled_program(*inputs))
            for run_number, actual in enumerate(results):
                for number, result in enumerate(actual):
                    i, step = own_steps[number % len(own_steps)]
                    inputs_of_all = [
                        input_of(rank, step.shape, step.dtype, 100 * run_number + i)
                        for rank in step.group.ranks
                    ]
                    expected = step.expected(inputs_of_all, step.group.rank())
                    self.expect(result, expected, step.dtype)

    def check_one_function_twice_in_a_program(self) -> None:
        """If a program uses a jit function twice, XLA compiles this function only once. Its
        collective calls must still run twice."""
        average = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        two_averages = jax.jit(lambda a, b: (average(a), average(b)))
        for _ in range(20):
            first_average, second_average = two_averages(jnp.full(5000, 1.0), jnp.full(5000, 10.0))
            assert (first_average == self.size).all() and (second_average == 10 * self.size).all()

    def check_programs_that_run_at_the_same_time(self) -> None:
        average = jax.jit(hvd.allreduce)
        results = [average(jnp.full(50_000, float(i + self.rank))) for i in range(40)]
        eager = hvd.allreduce(jnp.float32(self.rank))  # called while the programs run
        mean = (self.size - 1) / 2
        for i, result in enumerate(results):
            assert (result == i + mean).all()
        assert eager == mean

    def weights(self, rank: int, rows: int) -> Array:
        return np.arange(rows) * (rank + 1.0)

    def check_gradients(self) -> None:
        """Check the gradient of Σ weights · result, summed over all ranks."""
        size, rank, rows = self.size, self.rank, 2 * self.size
        weights_of_all = [self.weights(r, rows) for r in range(size)]
        mean, total = np.mean(weights_of_all, 0), np.sum(weights_of_all, 0)
        part = slice(2 * rank, 2 * rank + 2)
        scattered = np.concatenate([self.weights(r, 2) for r in range(size)])
        gathered = np.sum([self.weights(r, size * rows) for r in range(size)], 0)
        cases: list[tuple[ArrayFunction, int, Array]] = [
            (hvd.allreduce, rows, mean),
            (lambda x: hvd.allreduce(x, op=hvd.Sum), rows, total),
            (lambda x: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0), rows, 2 * mean),
            (lambda x: hvd.broadcast(x, 0), rows, total if rank == 0 else 0 * total),
            (hvd.reducescatter, 2, scattered / size),
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), 2, scattered),
            (hvd.allgather, size * rows, gathered[rows * rank : rows * (rank + 1)]),
            (hvd.alltoall, rows, np.concatenate([array[part] for array in weights_of_all])),
        ]
        for call, count, expected in cases:
            weights = self.weights(rank, count)

            def loss(
                x: jax.Array, call: ArrayFunction = call, weights: Array = weights
            ) -> jax.Array:
                return (call(x) * weights).sum()

            for transform in (
                jax.grad(loss),
                jax.jit(jax.grad(loss)),
                jax.jit(jax.grad(jax.checkpoint(loss))),
            ):
                actual = transform(jnp.ones(rows))
                np.testing.assert_allclose(actual, expected, rtol=1e-12)

    def check_gradient_of_unequal_parts(self) -> None:
        """The rows of a reducescatter cannot be divided evenly: some ranks get one row more than
        others, and some may get no row."""
        for rows in (1, 2 * self.size + 1):
            count, remainder = divmod(rows, self.size)
            weights_of_all = [self.weights(r, count + (r < remainder)) for r in range(self.size)]
            weights, scattered = weights_of_all[self.rank], np.concatenate(weights_of_all)

            def loss(x: jax.Array, weights: Array = weights) -> jax.Array:
                return (hvd.reducescatter(x)[:, 0] * weights).sum()

            eager = jax.grad(loss)(jnp.ones((rows, 1)))
            np.testing.assert_allclose(eager[:, 0], scattered / self.size, rtol=1e-12)
            examples = jax.jit(jax.vmap(jax.grad(loss)))(jnp.ones((3, rows, 1)))
            np.testing.assert_allclose(examples[2, :, 0], scattered / self.size, rtol=1e-12)

    def check_gradient_of_one_array_of_a_batch(self) -> None:
        def loss(x: jax.Array) -> jax.Array:
            tree = {"x": x, "constant": jnp.ones(3), "number": jnp.arange(2)}
            return (hvd.allreduce(tree, op=hvd.Sum)["x"] * (self.rank + 1)).sum()

        for transform in (jax.grad(loss), jax.jit(jax.grad(loss))):
            gradient = transform(jnp.ones(2))
            assert (gradient == self.size * (self.size + 1) / 2).all(), gradient

    def check_forward_derivatives(self) -> None:
        tangent = jnp.arange(6.0) * (self.rank + 1)
        for call in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0)):
            value, tangent_result = jax.jit(lambda x, t, call=call: jax.jvp(call, (x,), (t,)))(
                jnp.ones(6), tangent
            )
            assert (value == 1).all()
            assert jnp.array_equal(tangent_result, call(tangent))

    def check_forward_and_reverse_mode_agree(self) -> None:
        """Summed over the ranks, ⟨J v, w⟩ is ⟨v, Jᵀ w⟩."""
        rows, size = 2 * self.size, self.size
        calls: list[tuple[ArrayFunction, int]] = [
            (hvd.allreduce, rows),
            (lambda x: hvd.allreduce(x, op=hvd.Sum), rows),
            (hvd.allgather, size * rows),
            (lambda x: hvd.broadcast(x, size - 1), rows),
            (hvd.alltoall, rows),
            (hvd.reducescatter, 2),
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), 2),
        ]
        v = jnp.asarray(self.weights(self.rank, rows) + 1)
        for call, count in calls:
            w = jnp.asarray(self.weights(self.rank + 1, count) + 2)
            _, forward = jax.jvp(call, (jnp.ones(rows),), (v,))
            (reverse,) = jax.vjp(call, jnp.ones(rows))[1](w)
            products = jnp.stack([(forward * w).sum(), (v * reverse).sum()])
            left, right = hvd.allreduce(products, op=hvd.Sum)
            np.testing.assert_allclose(left, right, rtol=1e-12)

    def check_gradient_through_a_loop(self) -> None:
        def loss(x: jax.Array) -> jax.Array:
            halved = jax.lax.scan(lambda c, _: (hvd.allreduce(c) / 2, None), x, None, length=3)[0]
            return (halved * (self.rank + 1)).sum()

        gradient = jax.jit(jax.grad(loss))(jnp.ones(4))
        np.testing.assert_allclose(gradient, np.full(4, (self.size + 1) / 2 / 8), rtol=1e-12)

    def check_a_pytree_is_one_batch(self) -> None:
        tree = {"w": jnp.full((3, 2), 1.0 * self.rank), "b": [jnp.full(4, self.rank, jnp.int32), 3]}
        for call in (hvd.allreduce, jax.jit(hvd.allreduce)):
            mean = call(tree, op=hvd.Max) if call is hvd.allreduce else call(tree)
            assert jax.tree.structure(mean) == jax.tree.structure(tree)
            assert mean["b"][0].dtype == jnp.int32 and mean["b"][1] == 3
        assert hvd.allreduce({}) == {}

    def check_calls_on_constants(self) -> None:
        """A call on a constant becomes part of the compiled program. So all ranks make this call in
        each run, even if only some of them trace the program again in this run."""

        @jax.jit
        def rows_of_all(x: jax.Array) -> jax.Array:
            return hvd.allreduce(np.float32(len(x)), op=hvd.Sum)

        for run_number in range(4):  # rank 0 traces in each run, others only in the first two
            rows = [
                3 + run_number if rank == 0 else 3 + run_number % 2 for rank in range(self.size)
            ]
            assert rows_of_all(jnp.ones(rows[self.rank])) == sum(rows), run_number

        own_value, size = np.array([self.rank + 1.0]), self.size
        total = size * (size + 1) / 2
        for constant in (own_value, jnp.asarray(own_value), own_value[0]):
            program = jax.jit(lambda x, c=constant: x * hvd.allreduce(c, op=hvd.Sum))
            assert "farandole_call" in program.lower(jnp.ones(2)).as_text()
            assert (program(jnp.ones(2)) == total).all()
            loop_total = jax.lax.scan(
                lambda s, _, c=constant: (s + hvd.allreduce(c, op=hvd.Sum).sum(), None),
                0.0,
                None,
                length=3,
            )
            assert loop_total[0] == 3 * total

    def check_calls_on_constants_outside_of_jit(self) -> None:
        """Outside of jit, JAX makes a call on a constant immediately, also within grad and vmap. So
        the shapes may differ between ranks."""
        rank_rows = np.ones(1 + self.rank)
        total = self.size * (self.size + 1) / 2

        def scaled(x: jax.Array) -> jax.Array:
            return (x * hvd.allgather(rank_rows).sum()).sum()

        assert (jax.grad(scaled)(jnp.ones(2)) == total).all()
        assert (jax.vmap(scaled)(jnp.ones(2)) == total).all()

        @jax.jit
        def sum_and_number(x: jax.Array) -> jax.Array:
            with jax.ensure_compile_time_eval():
                return x * int(hvd.allreduce(np.int32(2), op=hvd.Sum))

        assert sum_and_number(1.0) == 2 * self.size
        program = jax.jit(lambda x: x + hvd.alltoall(rank_rows, [1] * self.size)[0])
        self.expect_error("splits cannot be used inside jit", program, 1.0)
        with pytest.raises(jax.errors.ConcretizationTypeError):
            jax.jit(lambda x: x * int(hvd.allreduce(np.int32(2))))(1.0)

    def check_threads_with_names(self) -> None:
        def work(number: int) -> None:
            call = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name=f"thread.{number}"))
            for i in range(30):
                totals[number].append(float(call(jnp.full(3, 100.0 * number + i))[0]))

        totals: list[list[float]] = [[], [], []]
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(3):
            assert totals[number] == [self.size * (100.0 * number + i) for i in range(30)]

    def check_a_loop_of_unknown_length(self) -> None:
        double = jax.jit(
            lambda x: jax.lax.while_loop(
                lambda c: (c < 100).all(), lambda c: hvd.allreduce(2 * c), x
            )
        )
        assert (double(jnp.ones(2)) == 128).all()

    def check_derivatives_around_and_of_gradients(self) -> None:
        @jax.custom_vjp
        def mean(x: jax.Array) -> jax.Array:
            return hvd.allreduce(x)

        mean.defvjp(lambda x: (mean(x), None), lambda _, gradient: (3 * gradient,))
        assert (jax.jit(jax.grad(lambda x: mean(x).sum()))(jnp.ones(2)) == 3).all()
        hessian = jax.jit(jax.hessian(lambda x: (hvd.allreduce(x) ** 3).sum()))(jnp.ones(2))
        np.testing.assert_allclose(hessian, 6 * np.eye(2))
        per_example = jax.vmap(jax.grad(lambda x: (hvd.allreduce(x) ** 2).sum()))
        examples = jnp.arange(6.0).reshape(3, 2)
        assert (jax.jit(per_example)(examples) == 2 * examples).all()

    def check_steps_until_the_data_ends(self) -> None:
        """Rank r makes 3 + r steps. After a rank has called join(), it contributes zeros."""
        total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        for step in range(3 + self.rank):
            ranks = self.size - max(0, step - 2)
            assert (total(jnp.ones(2)) == ranks).all()
        assert hvd.join() == self.size - 1

    def check_compression(self) -> None:
        values = jnp.full(5, 1.0 + self.rank)
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            total = jax.jit(lambda x, c=compression: hvd.allreduce(x, compression=c))(values)
            assert total.dtype == values.dtype
            assert (total == (self.size + 1) / 2).all()

    def check_donated_arguments(self) -> None:
        step = jax.jit(lambda x: hvd.allreduce(x) + 1, donate_argnums=0)
        x = jnp.zeros(1000)
        for _ in range(10):
            x = step(x)
        assert (x == 10).all()

    def check_programs_that_are_compiled_ahead(self) -> None:
        tree = {"w": jnp.ones(3), "b": jnp.full(2, 1.0 * self.rank)}
        compiled_call = jax.jit(hvd.allreduce).lower(tree).compile()
        for _ in range(3):  # after the first call, JAX may use a faster path
            averages = compiled_call(tree)
            assert (averages["w"] == 1).all() and (averages["b"] == (self.size - 1) / 2).all()

    def check_an_input_that_is_used_again(self) -> None:
        """The result of an allreduce may take the memory of its input. If the program uses the
        input again, XLA must copy it first."""
        x = jnp.arange(5000.0) + self.rank
        sums = jax.jit(lambda x: (hvd.allreduce(x, op=hvd.Sum), x + 1, hvd.broadcast(x, 0)))
        for _ in range(3):
            total, incremented, broadcast_value = sums(x)
            expected = self.size * jnp.arange(5000.0) + self.size * (self.size - 1) / 2
            assert jnp.array_equal(total, expected) and jnp.array_equal(incremented, x + 1)
            assert jnp.array_equal(broadcast_value, jnp.arange(5000.0))

    def check_errors_of_compiled_calls(self) -> None:
        """If the calls of the ranks do not match, all ranks get the error, and later calls work."""
        if self.size == 1:
            return
        reduce, gather = jax.jit(hvd.allreduce), jax.jit(hvd.allgather)
        for call, text in ((reduce, "the shape differs"), (gather, "must send equally many rows")):
            try:
                jax.block_until_ready(call(jnp.ones(3 + self.rank)))
            except jax.errors.JaxRuntimeError as error:
                assert "ABORTED: CallError: " in str(error) and text in str(error), str(error)
            else:
                raise AssertionError("no error")
            assert (reduce(jnp.ones(3)) == 1).all()

    def check_failures_that_nothing_waits_for(self) -> None:
        """After a failed program, later programs work, and the rank can leave the job."""
        if self.size == 1:
            return
        for leave in (False, True):
            self.start_program_that_fails()
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                if leave:
                    hvd.shutdown()
                else:
                    wait_for_programs()
            if leave:
                assert not hvd.is_initialized()
                self.init()
                jax.clear_caches()
            wait_for_programs()
            assert (jax.jit(hvd.allreduce)(jnp.ones(3)) == 1).all()

    def start_program_that_fails(self) -> None:
        @jax.jit
        def step(x: jax.Array) -> jax.Array:
            for _ in range(20):  # delays the call, so that it fails after the program has started
                x = jnp.tanh(x @ x)
            return hvd.allreduce(x)

        with contextlib.suppress(jax.errors.JaxRuntimeError):
            step(jnp.ones((300 + self.rank, 300 + self.rank)))

    def check_errors_of_training_functions(self) -> None:
        def cause_of(text: str) -> Exception:
            try:
                try:
                    raise jax.errors.JaxRuntimeError(text)
                finally:
                    raise RuntimeError("Array has been deleted")
            except RuntimeError as error:
                return find_cause(error)

        for text in ("ABORTED: ", "INTERNAL: Compute error: Error dispatching computation: "):
            loss_error = cause_of(f"{text}GroupLostError: rank 1 has left")
            assert (
                isinstance(loss_error, hvd.GroupLostError) and str(loss_error) == "rank 1 has left"
            )
        call_error = cause_of("ABORTED: CallError: the shape differs")
        assert isinstance(call_error, hvd.CallError) and str(call_error) == "the shape differs"
        other_error = cause_of("INTERNAL: something else")
        assert type(other_error) is RuntimeError and str(other_error) == "Array has been deleted"

    def check_programs_of_an_earlier_job(self) -> None:
        double = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        assert (double(jnp.ones(2)) == self.size).all()
        hvd.shutdown()
        self.init()
        try:
            jax.block_until_ready(double(jnp.ones(2)))
        except jax.errors.JaxRuntimeError as error:
            assert "call jax.clear_caches() after init()" in str(error)
        else:
            raise AssertionError("no error")
        jax.clear_caches()
        assert (double(jnp.ones(2)) == self.size).all()
