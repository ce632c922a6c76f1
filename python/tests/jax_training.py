"""Training with optax: the replicas stay equal, and they learn what one process learns from all
data."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax_frontend import JaxFrontend
from suite import Suite

import farandole.jax as hvd
from farandole import lifecycle

STEPS = 8
ROWS = 12  # of all ranks together; a multiple of each tested number of ranks


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

    def expect_close(self, actual: Any, expected: Any) -> None:
        for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)

    def check_training_as_one_process_with_all_data(self) -> None:
        for optimizer in (optax.sgd(0.1, momentum=0.9), optax.adam(0.01)):
            single_process = self.train(optimizer, self.x, self.y)
            distributed = self.train(
                hvd.DistributedOptimizer(optimizer), self.own_rows(self.x), self.own_rows(self.y)
            )
            hvd.check_parameters(distributed)
            self.expect_close(distributed, single_process)
            if self.size > 1:  # without the distributed optimizer, the replicas differ
                unsynchronized_params = self.train(
                    optimizer, self.own_rows(self.x), self.own_rows(self.y)
                )
                self.expect_error(
                    "are not the same on all ranks", hvd.check_parameters, unsynchronized_params
                )

    def check_accumulated_gradients(self) -> None:
        """optax.MultiSteps averages the gradients of two steps."""
        wrapped = optax.MultiSteps(hvd.DistributedOptimizer(optax.sgd(0.1)), 2)
        distributed = self.train(wrapped, self.own_rows(self.x), self.own_rows(self.y))
        hvd.check_parameters(distributed)
        single_process = self.train(optax.MultiSteps(optax.sgd(0.1), 2), self.x, self.y)
        self.expect_close(distributed, single_process)

    def train_by_loss(self, optimizer: Any, names: str, all_rows: bool, is_compiled: bool) -> Any:
        """Train with an optimizer whose update() takes further arguments; `names` lists them."""
        x, y = (data if all_rows else self.own_rows(data) for data in (self.x, self.y))

        def value_fn(params: Any) -> jax.Array:
            return ((x[0] @ params["w"] - y[0]) ** 2).mean()

        def step(params: Any, state: Any) -> Any:
            value, gradients = jax.value_and_grad(value_fn)(params)
            arguments_by_name = {
                "value": value,
                "grad": jax.tree.map(jnp.array, gradients) if is_compiled else gradients,
                "value_fn": value_fn,
                "obj_fn": value_fn,
                "grad_fn": lambda params, _: jax.grad(value_fn)(params),
            }
            options = {name: arguments_by_name[name] for name in names.split()}
            updates, state = optimizer.update(gradients, state, params, **options)
            return optax.apply_updates(params, updates), state

        run = jax.jit(step) if is_compiled else step
        params = {"w": jnp.ones((5, 1))}
        state = optimizer.init(params)
        for _ in range(4 if is_compiled else 1):
            params, state = run(params, state)
        return params

    def check_optimizers_that_use_the_loss(self) -> None:
        ascent = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
        plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.2)
        line_search = optax.scale_by_backtracking_linesearch(15, store_grad=True)
        for optimizer, names, is_compiled in (
            (optax.chain(optax.sgd(0.1), plateau), "value", True),
            (optax.polyak_sgd(), "value", True),
            (optax.polyak_sgd(), "value", False),
            (optax.lbfgs(), "value grad value_fn", True),
            (optax.chain(optax.sgd(1.0), line_search), "value grad value_fn", True),
            (optax.chain(optax.sgd(1.0), line_search), "value grad value_fn", False),
            (optax.contrib.sophia(0.1), "obj_fn", True),
            (optax.contrib.sam(optax.sgd(0.1), ascent, opaque_mode=True), "grad_fn", True),
        ):
            single_process = self.train_by_loss(optimizer, names, True, is_compiled)
            distributed = hvd.DistributedOptimizer(optimizer)
            trained_params = self.train_by_loss(distributed, names, False, is_compiled)
            hvd.check_parameters(trained_params)
            np.testing.assert_allclose(
                trained_params["w"], single_process["w"], rtol=1e-6, atol=1e-9
            )

    def check_a_sum_of_losses(self) -> None:
        """Polyak's step size is the loss divided by the squared gradient. A sum over n ranks makes
        the gradient n times as large, so the step size becomes n times smaller, and the update
        stays the same."""
        expected = self.train_by_loss(optax.polyak_sgd(1e9), "value", True, True)
        sum_optimizer = hvd.DistributedOptimizer(optax.polyak_sgd(1e9), op=hvd.Sum)
        actual = self.train_by_loss(sum_optimizer, "value", False, True)
        np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-6, atol=1e-9)
        line_search = optax.scale_by_backtracking_linesearch(15, store_grad=True)
        sum_optimizer = hvd.DistributedOptimizer(
            optax.chain(optax.sgd(1 / self.size), line_search), op=hvd.Sum
        )
        actual = self.train_by_loss(sum_optimizer, "value grad value_fn", False, True)
        expected = self.train_by_loss(
            optax.chain(optax.sgd(1.0), line_search), "value grad value_fn", True, True
        )
        np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-6, atol=1e-9)

    def check_gradients_of_all_ranks(self) -> None:
        params = initial_parameters()
        x, y = self.own_rows(self.x)[0], self.own_rows(self.y)[0]
        expected = jax.grad(loss_of)(params, self.x[0], self.y[0])
        for transform in (lambda function: function, jax.jit):
            value, actual = transform(hvd.value_and_grad(loss_of))(params, x, y)
            self.expect_close(actual, expected)
            np.testing.assert_allclose(value, loss_of(params, x, y))
            self.expect_close(transform(hvd.grad(loss_of))(params, x, y), expected)

    def check_gradients_outside_of_the_group(self) -> None:
        """A rank outside of the process set gets its own gradients, not averages."""
        params, own_batch = (
            initial_parameters(),
            (self.own_rows(self.x)[0], self.own_rows(self.y)[0]),
        )
        for group in self.groups:
            members = group.ranks if group.included() else [self.rank]
            rows = np.isin(np.arange(ROWS) % self.size, members)
            expected = jax.grad(loss_of)(params, self.x[0][rows], self.y[0][rows])
            optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), process_set=group)
            for transform in (lambda function: function, jax.jit):
                actual = transform(hvd.grad(loss_of, process_set=group))(params, *own_batch)
                self.expect_close(actual, expected)
                own_gradients = jax.grad(loss_of)(params, *own_batch)
                updates, _ = transform(optimizer.update)(own_gradients, optimizer.init(params))
                self.expect_close(updates, jax.tree.map(lambda array: -array, expected))
            if not group.included():
                with mock.patch.object(lifecycle, "is_elastic", lambda: True):
                    compiled_grad = jax.jit(hvd.grad(loss_of, process_set=group))
                    with pytest.raises(jax.errors.JaxRuntimeError, match="not a member"):
                        jax.block_until_ready(compiled_grad(params, *own_batch))

    def check_auxiliary_results(self) -> None:
        def loss_and_count(params: Any, x: jax.Array, y: jax.Array) -> Any:
            return loss_of(params, x, y), len(x)

        params = initial_parameters()
        x, y = self.own_rows(self.x)[0], self.own_rows(self.y)[0]
        expected = jax.grad(loss_of)(params, self.x[0], self.y[0])
        actual, count = hvd.grad(loss_and_count, has_aux=True)(params, x, y)
        self.expect_close(actual, expected)
        assert count == ROWS // self.size

    def check_parameters_of_the_root(self) -> None:
        params = jax.tree.map(lambda array: array + self.rank, initial_parameters())
        root = self.size - 1
        root_params = hvd.broadcast_parameters(params, root_rank=root)
        self.expect_close(
            root_params, jax.tree.map(lambda array: array + root, initial_parameters())
        )
        hvd.check_parameters(root_params)
        if self.size > 1:
            self.expect_error("the first is `['hidden']['b']`", hvd.check_parameters, params)

    def check_parameters_in_another_order(self) -> None:
        """The keys of a dict may be in different orders on the ranks, because JAX sorts them. The
        keys of an OrderedDict must be in the same order, because JAX does not sort these."""
        names = ["alpha", "beta", "gamma"][:: -1 if self.rank else 1]
        params = {"hidden": OrderedDict((name, jnp.ones(1)) for name in names), "w": jnp.ones(1)}
        if self.size > 1:
            text = "leaf 1 is\n"
            self.expect_error(text, hvd.broadcast_parameters, params)
            missing_params = {"w": jnp.ones(1)} if self.rank else {}
            self.expect_error("there is none", hvd.broadcast_parameters, missing_params)
        assert hvd.broadcast_parameters({"w": jnp.ones(1)})["w"] == 1

    def check_random_keys_are_parameters(self) -> None:
        """Dropout layers of Flax keep a random key and a counter, both uint32, among the
        parameters."""

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
            for name, expected in state_of(root).items():
                assert state[name].dtype == expected.dtype, name
                assert (state[name] == expected).all(), name
        if self.size > 1:
            state["key"] = jax.random.key(self.rank)
            self.expect_error("differs, `['key']`", hvd.check_parameters, state)
