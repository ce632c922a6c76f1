"""Checks, on NumPy arrays, of the modules that all frontends share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy_frontend import NumpyFrontend
from reference import Array
from suite import Suite

from farandole import elastic
from farandole import numpy as numpy_arrays
from farandole.elastic_samples import ElasticSamples, SamplesHandler
from farandole.group import OptimizerName
from farandole.handle import Handle
from farandole.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    Operation,
    Reducescatter,
    return_array_and_rows,
    start,
)
from farandole.reduce_op import Average, Sum
from farandole.sparse_rows import start_gather
from farandole.training import parameter_check, periodic_check, training_state
from farandole.training.bucket_layout import DENSE, NO_GRADIENT, SPARSE, agree_on_gradients
from farandole.training.pairing import in_common_order


class Model:
    """A model with the two functions that an elastic state calls: state_dict() and
    load_state_dict()."""

    def __init__(self, weight: Array) -> None:
        self.weight = weight

    def state_dict(self) -> dict[str, Array]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self.weight = state["weight"]


class SharedModules(Suite):
    def __init__(self) -> None:
        super().__init__(NumpyFrontend(has_async=True))
        self.world = self.api.global_process_set

    def gradient(self, operation: Operation, array: Array) -> Array:
        """Return the gradient of the input. Each element of the output has the gradient rank +
        1."""
        output, rows = start(numpy_arrays, operation, array, None, return_array_and_rows).wait()
        backward = operation.backward(
            numpy_arrays, np.full_like(output, self.rank + 1), array.shape, rows
        )
        result, _ = start(
            numpy_arrays, backward.operation, backward.array, None, return_array_and_rows
        ).wait()
        return backward.finish(result)

    def check_gradients(self) -> None:
        rank_gradients = np.arange(1.0, self.size + 1)
        mean, total = rank_gradients.mean(), rank_gradients.sum()
        ones = np.ones((self.size + 1, 2))
        row_counts = [len(part) for part in np.array_split(ones, self.size)]
        by_row = np.repeat(rank_gradients, row_counts)[:, None]
        is_root = self.rank == self.size - 1
        for operation, expected in (
            (Allreduce(self.world, Average), mean),
            (Allreduce(self.world, Sum, 0.5, 4.0), 2 * total),
            (Broadcast(self.world, self.size - 1), mean * is_root),
            (Allgather(self.world), mean),
            (Reducescatter(self.world, Sum), by_row * self.size),
            (Reducescatter(self.world, Average, 3.0), by_row * 3),
        ):
            actual = self.gradient(operation, ones)
            assert np.array_equal(actual, np.broadcast_to(expected, ones.shape)), operation
        sent_rows = np.concatenate((rank_gradients, [0.0]))[
            :, None
        ]  # the last row is sent to no rank
        actual = self.gradient(Alltoall(self.world, [1] * self.size), ones)
        assert np.array_equal(actual, np.broadcast_to(sent_rows, ones.shape))

    def check_sparse_rows(self) -> None:
        """Rank r has r + 1 elements of the value r, in the rows 0 ... r."""
        indices = np.arange(self.rank + 1)[:, None]
        values = np.full((self.rank + 1, 2), self.rank)
        actual = start_gather(numpy_arrays, np.array([[7]]), indices, values, "rows", self.world)()
        assert actual.sizes == [7]
        expected = [(row, rank) for rank in range(self.size) for row in range(rank + 1)]
        assert [*zip(actual.indices[:, 0], actual.values[:, 1], strict=True)] == expected
        if self.size > 1:
            sizes = np.array([[7 + self.rank]])
            finish = start_gather(numpy_arrays, sizes, indices, values, "rows", self.world)
            self.expect_error("`rows` have different sizes", finish)

    def check_pairing(self) -> None:
        """Arrays with names are paired by name, in any order. Others are paired by their order."""
        first_array, second_array = np.zeros(2), np.zeros((3, 1))
        arrays = [first_array, second_array] if self.rank == 0 else [second_array, first_array]
        names = {id(first_array): "one", id(second_array): "two"}
        paired_arrays = in_common_order(numpy_arrays, arrays, names, "pairing", self.world)
        assert paired_arrays[0] is first_array and paired_arrays[1] is second_array
        if self.size > 1:
            text = self.expect_error(
                "do not have the same parameters",
                in_common_order,
                numpy_arrays,
                arrays,
                {},
                "pairing",
                self.world,
            )
            assert "float64 [2]" in text and "float64 [3, 1]" in text, text

    def check_layout(self) -> None:
        """All ranks take the order in which rank 0 completed its gradients. A gradient that is
        sparse on some rank counts as sparse on all ranks."""
        kinds = [DENSE, SPARSE if self.rank == self.size - 1 else DENSE, NO_GRADIENT]
        completed = [1, 0] if self.rank == 0 else [0, 1]
        gradients = agree_on_gradients(kinds, completed, "layout", self.world)
        assert [gradient.kind for gradient in gradients] == [DENSE, SPARSE, NO_GRADIENT]
        assert [gradient.is_on_all_ranks for gradient in gradients] == [True, True, False]
        assert sorted(range(3), key=lambda index: gradients[index].place) == [1, 0, 2]

    def check_parameters(self) -> None:
        equal_parameters = {"weight": np.arange(6.0).reshape(2, 3), "mask": np.array([True, False])}
        parameter_check.check(numpy_arrays, equal_parameters, self.world, "same", advice="")
        if self.size == 1:
            return
        different_parameters = equal_parameters | {
            "weight": equal_parameters["weight"] + (self.rank == 1)
        }
        text = self.expect_error(
            "`weight` (float64 [2, 3])",
            parameter_check.check,
            numpy_arrays,
            different_parameters,
            self.world,
            "same",
            advice="Ask somebody.",
        )
        assert "up to 1 apart" in text and text.endswith("Ask somebody."), text

    def check_parameters_every_second_step(self) -> None:
        check = periodic_check.PeriodicCheck(numpy_arrays, 2, OptimizerName(self.world), self.world)
        weight = np.zeros(4)
        for _ in range(2):
            check.on_step_end(lambda: {"weight": weight}, lambda: "SGD")
        weight[3] = self.rank
        if self.size > 1:
            text = self.expect_error(
                "after step 3", check.on_step_end, lambda: {"weight": weight}, lambda: "SGD"
            )
            assert "They were the same after step 1" in text, text

    def broadcast(self, array: Array, root: int, name: str, group: Any) -> Handle[Array]:
        return self.api.broadcast_async(array, root, name=name, process_set=group)

    def check_all_ranks_get_the_state_of_one_rank(self) -> None:
        root = self.size - 1
        own_state = {"a": np.full(3, self.rank), "b": None, "c": np.array(self.rank * 0.5)}
        root_state = training_state.broadcast_parameters(
            numpy_arrays, self.broadcast, own_state, root, self.world
        )
        assert sorted(root_state) == ["a", "c"]
        assert np.array_equal(root_state["a"], np.full(3, root)) and root_state["c"] == root * 0.5
        shared_value = np.arange(5.0) + self.rank
        state = {
            "step": self.rank,
            "moments": [shared_value, shared_value.T],
            "text": "x" * self.rank,
        }
        loaded_states: list[Any] = []
        root_state = training_state.broadcast_optimizer_state(
            numpy_arrays, self.broadcast, lambda: state, loaded_states.append, root, self.world
        )
        assert (root_state["step"], root_state["text"]) == (root, "x" * root)
        for moment in root_state["moments"]:
            assert np.array_equal(moment, np.arange(5.0) + root)
        assert loaded_states == ([] if self.rank == root else [root_state])

    def check_a_state_that_a_rank_cannot_load(self) -> None:
        def reject(state: object) -> None:
            raise ValueError("too large")

        if self.size > 1:
            text = self.expect_error(
                "not all ranks could load",
                training_state.broadcast_optimizer_state,
                *(numpy_arrays, self.broadcast, dict, reject, 0, self.world),
            )
            assert "ValueError: too large" in text

    def check_elastic_state(self) -> None:
        samples = ElasticSamples(range(10), shuffle=False)
        registry: elastic.HandlerRegistry = [
            (Model, elastic.StateDictHandler),
            (ElasticSamples, SamplesHandler),
        ]
        model = Model(np.zeros(2))
        state = elastic.HandledState(registry, {"model": model, "samples": samples, "epoch": 0})
        model.weight = np.ones(2)
        state.epoch = 5
        state.restore()
        assert np.array_equal(model.weight, np.zeros(2)) and state.epoch == 0
        samples.record_batch(0, 1)
        SamplesHandler(samples).sync()
        assert samples.processed_num == self.size
        assert [*samples] == [*range(self.size, 10), *range(self.size, 10)][
            self.rank : samples.total_size : self.size
        ]
