"""Models of Flax and Equinox learn the same on several ranks as in one process with all data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax_frontend import JaxFrontend
from suite import Suite

import farandole.jax as hvd

STEPS = 20
ROWS = 12  # of all ranks together; a multiple of each tested number of ranks
COLUMNS = 5
# Takes an optimizer, a seed and data, and returns the trained parameters.
TrainFunction = Callable[[Any, int, Any, Any], Any]


def squared_error(predictions: Any, expected: Any) -> Any:
    return ((predictions.reshape(-1) - expected) ** 2).mean()


def train_linen(optimizer: Any, seed: int, x: Any, y: Any) -> Any:
    model = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(1)])
    params = hvd.broadcast_parameters(model.init(jax.random.key(seed), x))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    @jax.jit
    def step(state: Any) -> Any:
        gradients = jax.grad(lambda p: squared_error(state.apply_fn(p, x), y))(state.params)
        return state.apply_gradients(grads=gradients)

    for _ in range(STEPS):
        state = step(state)
    return state.params


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(COLUMNS, 4, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(nnx.tanh(self.hidden(x)))


def train_nnx(optimizer: Any, seed: int, x: Any, y: Any) -> Any:
    model = NnxModel(nnx.Rngs(seed))
    nnx.update(model, hvd.broadcast_parameters(nnx.state(model)))
    optimizer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, nnx.grad(lambda model: squared_error(model(x), y))(model))

    for _ in range(STEPS):
        step(model, optimizer)
    return nnx.state(model)


def train_equinox(optimizer: Any, seed: int, x: Any, y: Any) -> Any:
    model = eqx.nn.MLP(COLUMNS, 1, 4, 1, key=jax.random.key(seed))
    arrays, other_leaves = eqx.partition(model, eqx.is_array)
    model = eqx.combine(hvd.broadcast_parameters(arrays), other_leaves)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        gradients = eqx.filter_grad(lambda model: squared_error(jax.vmap(model)(x), y))(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    for _ in range(STEPS):
        model, state = step(model, state)
    return eqx.filter(model, eqx.is_array)


class JaxLibraryChecks(Suite):
    def __init__(self) -> None:
        super().__init__(JaxFrontend())
        random = np.random.default_rng(3)
        self.x = jnp.asarray(random.standard_normal((ROWS, COLUMNS)), jnp.float32)
        self.y = jnp.asarray(random.standard_normal(ROWS), jnp.float32)

    def expect_training_of_all_rows(self, train: TrainFunction) -> None:
        own_x, own_y = self.x[self.rank :: self.size], self.y[self.rank :: self.size]
        distributed = train(hvd.DistributedOptimizer(optax.adam(0.01)), self.rank, own_x, own_y)
        single_process = train(optax.adam(0.01), self.rank, self.x, self.y)
        hvd.check_parameters(distributed)
        leaves = jax.tree.leaves(distributed)
        assert len(leaves) == 4
        for one, other in zip(leaves, jax.tree.leaves(single_process), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    def check_flax_linen(self) -> None:
        self.expect_training_of_all_rows(train_linen)

    def check_flax_nnx(self) -> None:
        self.expect_training_of_all_rows(train_nnx)

    def check_flax_nnx_in_an_elastic_state(self) -> None:
        """The elastic state restores the very objects that the program trains."""
        model = NnxModel(nnx.Rngs(self.rank))
        adam = hvd.DistributedOptimizer(optax.adam(0.1))
        optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
        state = hvd.elastic.JaxState(model=model, optimizer=optimizer, batch=0)

        @nnx.jit
        def train(model: Any, optimizer: Any, x: Any, y: Any) -> None:
            optimizer.update(model, nnx.grad(lambda model: squared_error(model(x), y))(model))

        def values() -> list[bytes]:
            return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nnx.state(model))]

        own_x, own_y = self.x[self.rank :: self.size], self.y[self.rank :: self.size]
        step = hvd.elastic.Step(state)
        failures, values_after_failures = 0, [values()]
        while step.ready() and state.batch < 3:
            with step:
                train(model, optimizer, own_x, own_y)
                if state.batch == 1 and failures == 0:
                    failures += 1
                    raise hvd.GroupLostError("a failure that the test made")
                state.batch += 1
                values_after_failures.append(values())
        assert failures == 1 and len({tuple(row) for row in values_after_failures}) == 4
        assert state.model is model and state.optimizer is optimizer
        hvd.check_parameters((nnx.state(model), nnx.state(optimizer)))
        expected = NnxModel(nnx.Rngs(0))
        optimizer = nnx.Optimizer(expected, adam, wrt=nnx.Param)
        for _ in range(3):
            train(expected, optimizer, own_x, own_y)
        hvd.check_parameters((nnx.state(model), nnx.state(expected)))
        assert values() == [np.asarray(a).tobytes() for a in jax.tree.leaves(nnx.state(expected))]
        state.model = None
        state.restore()
        assert state.model is model

    def check_equinox(self) -> None:
        self.expect_training_of_all_rows(train_equinox)
