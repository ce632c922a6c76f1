"""Training with optax: the replicas stay equal, and they learn what one process learns from all
data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_frontend import JaxFrontend
from suite import Suite

import farandole.jax as hvd

STEPS = 8
ROWS = 12  # of all ranks together, a multiple of every size that is tested


def initial_parameters() -> dict[str, Any]:
    random = np.random.default_rng(7)
    return {
        "hidden": {"w": jnp.asarray(random.standard_normal((5, 4))), "b": jnp.zeros(4)},
        "out": [jnp.asarray(random.standard_normal((4, 1)))],
    }


def loss_of(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return ((hidden @ params["out"][0] - y) ** 2).mean()


class JaxTrainingChecks(Suite):
    def __init__(self) -> None:
        super().__init__(JaxFrontend())
        random = np.random.default_rng(3)
        self.x = jnp.asarray(random.standard_normal((STEPS, ROWS, 5)))
        self.y = jnp.asarray(random.standard_normal((STEPS, ROWS, 1)))

    def own_rows(self, data: jax.Array) -> jax.Array:
        return data[:, self.rank :: self.size]

    def train(self, optimizer: Any, x: jax.Array, y: jax.Array) -> Any:
        params = initial_parameters()
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
            gradients = jax.grad(loss_of)(params, x, y)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        for batch in range(STEPS):
            params, state = step(params, state, x[batch], y[batch])
        return params

    def expect_close(self, found: Any, wanted: Any) -> None:
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)

    def check_training_as_one_process_with_all_data(self) -> None:
        for optimizer in (optax.sgd(0.1, momentum=0.9), optax.adam(0.01)):
            alone = self.train(optimizer, self.x, self.y)
            together = self.train(
                hvd.DistributedOptimizer(optimizer), self.own_rows(self.x), self.own_rows(self.y)
            )
            hvd.check_parameters(together)
            self.expect_close(together, alone)
            if self.size > 1:  # without the optimizer, the replicas would drift apart
                apart = self.train(optimizer, self.own_rows(self.x), self.own_rows(self.y))
                self.expect_error("are not the same on all ranks", hvd.check_parameters, apart)

    def check_accumulated_gradients(self) -> None:
        """optax.MultiSteps calls the optimizer, and so the allreduce, in every second step."""
        wrapped = optax.MultiSteps(hvd.DistributedOptimizer(optax.sgd(0.1)), 2)
        together = self.train(wrapped, self.own_rows(self.x), self.own_rows(self.y))
        hvd.check_parameters(together)
        alone = self.train(optax.MultiSteps(optax.sgd(0.1), 2), self.x, self.y)
        self.expect_close(together, alone)

    def check_gradients_of_all_ranks(self) -> None:
        params = initial_parameters()
        x, y = self.own_rows(self.x)[0], self.own_rows(self.y)[0]
        wanted = jax.grad(loss_of)(params, self.x[0], self.y[0])
        for transform in (lambda function: function, jax.jit):
            value, found = transform(hvd.value_and_grad(loss_of))(params, x, y)
            self.expect_close(found, wanted)
            np.testing.assert_allclose(value, loss_of(params, x, y))
            self.expect_close(transform(hvd.grad(loss_of))(params, x, y), wanted)

    def check_auxiliary_results(self) -> None:
        def with_count(params: Any, x: jax.Array, y: jax.Array) -> Any:
            return loss_of(params, x, y), len(x)

        params = initial_parameters()
        x, y = self.own_rows(self.x)[0], self.own_rows(self.y)[0]
        wanted = jax.grad(loss_of)(params, self.x[0], self.y[0])
        found, count = hvd.grad(with_count, has_aux=True)(params, x, y)
        self.expect_close(found, wanted)
        assert count == ROWS // self.size

    def check_parameters_of_the_root(self) -> None:
        params = jax.tree.map(lambda array: array + self.rank, initial_parameters())
        last = self.size - 1
        found = hvd.broadcast_parameters(params, root_rank=last)
        self.expect_close(found, jax.tree.map(lambda array: array + last, initial_parameters()))
        hvd.check_parameters(found)
        if self.size > 1:
            self.expect_error("the first is `['hidden']['b']`", hvd.check_parameters, params)

    def check_random_keys_are_parameters(self) -> None:
        """Dropout layers of Flax keep a key and a counter in uint32 beside the parameters."""

        def state_of(rank: int) -> dict[str, Any]:
            return {
                "key": jax.random.key(rank),
                "old key": jax.random.PRNGKey(rank),
                "count": jnp.array([2**32 - 1 - rank], jnp.uint32),
                "w": jnp.ones(2) * rank,
            }

        root = self.size - 1

        def broadcast(state: Any) -> Any:
            return hvd.broadcast_parameters(state, root)

        for call in (broadcast, jax.jit(broadcast)):
            state = call(state_of(self.rank))
            hvd.check_parameters(state)
            for name, wanted in state_of(root).items():
                assert state[name].dtype == wanted.dtype, name
                assert (state[name] == wanted).all(), name
        if self.size > 1:
            state["key"] = jax.random.key(self.rank)
            self.expect_error("differs, `['key']`", hvd.check_parameters, state)
