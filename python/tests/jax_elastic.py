"""Checks of the elastic state and loops of JAX, in a job of fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from farandole.jax import elastic

STEPS = 6


def bits_of(value: Any) -> Any:
    """Convert a value to a form in which `==` compares types, dtypes and bits."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "key", str(jax.random.key_impl(value)), bits_of(jax.random.key_data(value))
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        kind = "jax" if isinstance(value, jax.Array) else type(value).__name__
        return kind, value.dtype.name, value.shape, np.asarray(value).tobytes()
    if isinstance(value, (dict, list, tuple)):
        # JAX sorts the keys of a dict with arrays.
        items = sorted(value.items(), key=str) if isinstance(value, dict) else enumerate(value)
        return type(value).__name__, [(key, bits_of(item)) for key, item in items]
    return type(value).__name__, value


def values_of_all_kinds(seed: int) -> dict[str, Any]:
    """Return values of all kinds. With another seed, each array has other elements."""
    random = np.random.default_rng(seed)
    numbers = random.integers(1, 100, 6).astype("float32").reshape(2, 3)
    payload = np.array([0x7FC00001 + seed, 0xFF800000, 0x80000000, 1], "uint32")
    names = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16")
    return {
        "dtypes": {name: jnp.asarray(numbers, name) for name in (*names, "float32")},
        "not_of_the_engine": [
            jnp.asarray(numbers, name) for name in ("complex64", "float8_e4m3fn")
        ],
        "nan": jax.lax.bitcast_convert_type(jnp.asarray(payload), jnp.float32),
        "empty": (jnp.zeros((0, 4)), jnp.zeros(())),
        "scalar": jnp.float32(seed + 0.5),
        "keys": [jax.random.key(seed), jax.random.PRNGKey(seed), jax.random.key(seed, impl="rbg")],
        "opt_state": optax.adam(0.1).init({"w": jnp.asarray(numbers)}),
        "mixed": {"array": jnp.asarray(numbers), "numpy": numbers, "name": "abc", "count": seed},
        "numpy": [np.float64(seed) / 3, np.uint64(2**63 + seed), numbers.astype("float64")],
        "objects": {"b": [seed], "a": {seed}, 3: None},
        "not_sortable": {"a": jnp.asarray(numbers), 1: "one"},
        "nothing": None,
        "batch": seed,
    }


class JaxElasticChecks:
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def values_of(self, state: elastic.JaxState, names: Any) -> dict[str, Any]:
        return {name: bits_of(getattr(state, name)) for name in names}

    def check_restore_is_exact(self) -> None:
        values = values_of_all_kinds(self.rank)
        state = elastic.JaxState(**values)
        expected = self.values_of(state, values)
        for _ in range(2):
            for name, other_value in values_of_all_kinds(self.rank + 50).items():
                setattr(state, name, other_value)
            assert self.values_of(state, values) != expected
            state.restore()
            assert self.values_of(state, values) == expected
            state.mixed["numpy"][0, 0] += 1  # a change in place must not reach the saved state
            state.objects["b"].append(5)
            state.restore()
            assert self.values_of(state, values) == expected
            assert list(state.objects) == ["b", "a", 3]
        state.batch = 77
        state.commit()
        state.batch = 78
        state.restore()
        assert state.batch == 77

    def check_sync_is_exact(self) -> None:
        values = values_of_all_kinds(self.rank)
        state = elastic.JaxState(**values)
        state.sync()
        expected = {name: bits_of(value) for name, value in values_of_all_kinds(0).items()}
        assert self.values_of(state, values) == expected
        state.batch = -1
        state.restore()
        assert self.values_of(state, values) == expected

    def check_objects_may_differ(self) -> None:
        """Values without arrays may differ between the ranks: all ranks get those of rank 0."""
        losses = [0.5, 0.25] if self.rank == 0 else []
        best = {"name": "first"} if self.rank == 0 else None
        state = elastic.JaxState(params=jnp.ones(2), losses=losses, best=best)
        state.sync()
        assert (state.losses, state.best) == ([0.5, 0.25], {"name": "first"})

    def check_arrays_must_not_differ(self) -> None:
        for value_of_rank_0 in (jnp.ones(3), jnp.ones(2, "int32"), None, {"w": jnp.ones(2)}):
            is_last = self.rank == self.size - 1 and self.size > 1
            state = elastic.JaxState(
                step=self.rank, params=value_of_rank_0 if is_last else jnp.ones(2)
            )
            try:
                state.sync()
            except hvd.CallError as error:
                assert "the state of some ranks has other arrays than that of rank 0" in str(error)
                assert f"rank {self.size - 1}   params" in str(error), error
                assert state.step == self.rank, "a part of the state was changed"
            else:
                assert self.size == 1
        assert hvd.allreduce(jnp.ones(1), op=hvd.Sum)[0] == self.size

    def check_containers_and_functions_stay(self) -> None:
        """A sync replaces the arrays of a pytree. Each rank keeps its own containers and
        functions."""

        @jax.tree_util.register_pytree_node_class
        class Model:
            def __init__(self, weight: Any, function: Any) -> None:
                self.weight, self.function = weight, function

            def tree_flatten(self) -> Any:
                return (self.weight,), self.function

            @classmethod
            def tree_unflatten(cls, function: Any, children: Any) -> Model:
                return cls(*children, function)

        function = lambda x: x  # noqa: E731, cannot be pickled by reference
        state = elastic.JaxState(model=Model(jnp.full(2, self.rank), function))
        state.sync()
        assert state.model.function is function
        assert state.model.weight.tolist() == [0, 0]
        state.restore()
        assert state.model.function is function

    def check_arrays_that_a_program_donates(self) -> None:
        double = jax.jit(lambda x: jax.tree.map(lambda y: y + y, x), donate_argnums=0)
        state = elastic.JaxState(params={"w": jnp.arange(1000.0), "b": jnp.ones(())})
        expected = bits_of(state.params)
        for _ in range(3):
            state.params = double(state.params)
            assert state.params["w"][2] == 4
            state.restore()
            assert bits_of(state.params) == expected

    def check_arrays_that_are_deleted(self) -> None:
        state = elastic.JaxState(params=jnp.arange(8.0), key=jax.random.key(3))
        expected = bits_of((state.params, state.key))
        state.params.delete()
        state.restore()
        assert bits_of((state.params, state.key)) == expected

    def failing_program(self) -> Callable[[Any], Any]:
        """Return a compiled program that makes a call. The call fails if a rank has left the
        job."""
        return jax.jit(lambda x: x + hvd.allreduce(jnp.ones_like(x), op=hvd.Sum))

    def check_a_failure_that_shows_later_is_not_saved(self) -> None:
        if self.size == 1:
            return
        program = self.failing_program()
        state = elastic.JaxState(params=jnp.zeros(100_000), batch=0)
        program(state.params).block_until_ready()
        attempts: list[tuple[float, int]] = []

        @elastic.run
        def train(state: elastic.JaxState) -> None:
            attempts.append((float(state.params[0]), state.batch))
            while state.batch < 3:
                if len(attempts) == 1 and state.batch == 1 and self.rank == 0:
                    raise hvd.GroupLostError("a failure that the test made")
                state.params = program(state.params)  # the program does not wait for the result
                state.batch += 1
                state.save()

        train(state)
        assert attempts == [(0, 0), (self.size, 1)], attempts
        assert float(state.params[0]) == 3 * self.size

    def check_failures_of_all_kinds(self) -> None:
        """A training whose steps fail ends with the same bits as one without failures."""
        expected = self.train_with_faults(elastic.JaxState, set())
        actual = self.train_with_faults(elastic.JaxState, {("one", 1), ("all", 3), ("members", 4)})
        assert actual == expected

    def train_with_faults(self, make_state: Any, faults: set[tuple[str, int]]) -> Any:
        optimizer = hvd.DistributedOptimizer(optax.adam(0.1))
        params = {"w": jnp.full(5, 1.0 + self.rank), "b": jnp.zeros(())}
        state = make_state(
            params=params, opt_state=optimizer.init(params), batch=0, key=jax.random.key(1)
        )
        step = elastic.Step(state)

        def loss_of(params: Any, x: Any) -> Any:
            return ((x * params["w"]).sum() + params["b"]) ** 2

        @jax.jit
        def update(params: Any, opt_state: Any, key: Any) -> Any:
            x = jax.random.normal(key, (5,))
            updates, opt_state = optimizer.update(jax.grad(loss_of)(params, x), opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        while step.ready() and state.batch < STEPS:
            with step:
                key = jax.random.fold_in(state.key, state.batch * self.size + hvd.rank())
                if ("one", state.batch) in faults and self.rank == 0:
                    faults.remove(("one", state.batch))
                    raise hvd.GroupLostError("a failure that the test made")
                state.params, state.opt_state = update(state.params, state.opt_state, key)
                if ("all", state.batch) in faults:
                    faults.remove(("all", state.batch))
                    raise hvd.GroupLostError("a failure that the test made")
                if ("members", state.batch) in faults:
                    faults.remove(("members", state.batch))
                    state.on_hosts_updated(0, 2)
                state.batch += 1
        hvd.check_parameters((state.params, state.opt_state))
        if self.rank == 0:
            assert not faults, faults
        return bits_of((state.params, state.opt_state, state.batch))
