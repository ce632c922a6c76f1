"""Checks of check_parameters(), and of the comparison that an optimizer makes by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from conformance import Conformance
from torch import nn
from torch_frontend import TorchFrontend

import farandole.torch as hvd
from farandole.training import periodic_check


def network(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors of many kinds, the same on all ranks."""
    matrix = torch.arange(6.0).reshape(2, 3)
    return {
        "float": matrix,
        "bfloat16": matrix.bfloat16(),
        "transposed": matrix.t(),
        "strided": torch.arange(20)[::3],
        "complex": torch.complex(matrix, -matrix).conj(),
        "bool": matrix > 2,
        "counts": torch.arange(7, dtype=torch.int64),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(3, 0),
        "nan": torch.tensor([float("nan"), 1.0]),
        "parameter": nn.Parameter(torch.ones(300, 400)),
    }


class ParameterChecks:
    expect_error = Conformance.expect_error
    api = TorchFrontend.api

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        self.differs = self.rank == 1  # only rank 1 has different tensors
        self.others = "rank 0" if self.size == 2 else "ranks 0, 2"
        self.rank_1_differs_text = "" if self.size == 2 else "; rank 1 differs from the others"

    def check_equal_parameters(self) -> None:
        hvd.check_parameters(tensors())
        hvd.check_parameters(tensors().items(), "named")
        hvd.check_parameters(list(tensors().values()))
        hvd.check_parameters(network().named_parameters())
        hvd.check_parameters(network().state_dict(), name="state")
        hvd.check_parameters({})
        hvd.check_parameters(reversed(tensors().items()) if self.differs else tensors().items())

    def expect_difference(self, change: Callable[[dict[str, torch.Tensor]], Any], text: str) -> str:
        """Expect an error on all ranks if rank 1 changes its tensors."""
        if self.size == 1:
            return ""
        own_tensors = tensors()
        if self.differs:
            change(own_tensors)
        error_text = self.expect_error(text, hvd.check_parameters, own_tensors, "check")
        texts = hvd.allgather_object(error_text)
        assert texts == [error_text] * self.size
        hvd.check_parameters(tensors(), "check")  # the job goes on
        return error_text

    def check_one_different_element(self) -> None:
        def change(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["bfloat16"][1, 2] += 1

        text = self.expect_difference(change, "`bfloat16`")
        if self.size > 1:
            first_line, *rows, spread, advice = text.splitlines()
            assert first_line == (
                "the parameters are not the same on all ranks: 1 of 11 differs, `bfloat16` "
                f"(bfloat16 [2, 3]){self.rank_1_differs_text}"
            )
            assert [row.split("   ")[0].strip() for row in rows] == [self.others, "rank 1"], rows
            assert spread == "  the values of an element are up to 1 apart"
            assert advice.startswith("Give all ranks the same values: broadcast_parameters(")

    def check_several_differences(self) -> None:
        def change(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["counts"][0] = -5
            own_tensors["parameter"].data[299, 399] = 3.25

        text = self.expect_difference(change, "2 of 11 differ, the first is `counts` (int64 [7])")
        assert self.size == 1 or "up to 5 apart" in text

    def check_bits_are_compared(self) -> None:
        def negate_zero(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["float"][0, 0] = -0.0

        self.expect_difference(negate_zero, "one rank has 0.0, another one -0.0")

        def change_nan(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["nan"].view(torch.int32)[0] ^= 1

        self.expect_difference(change_nan, "some of the values are NaN or infinite")

        def set_true(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["bool"][0, 0] = True

        self.expect_difference(set_true, "`bool` (bool [2, 3])")

    def check_different_dtypes_and_shapes(self) -> None:
        def change_dtype(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["float"] = own_tensors["float"].double()

        text = self.expect_difference(change_dtype, "1 of 11 differs, `float`")
        if self.size > 1:
            rows = [row.split("   ")[-1].strip() for row in text.splitlines()[1:3]]
            assert rows == ["float32 [2, 3]", "float64 [2, 3]"], rows

        def change_shape(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["empty"] = torch.empty(0, 3)

        text = self.expect_difference(change_shape, "1 of 11 differs, `empty`")
        if self.size > 1:
            rows = [row.split("   ")[-1].strip() for row in text.splitlines()[1:3]]
            assert rows == ["float32 [3, 0]", "float32 [0, 3]"], rows

    def check_different_names(self) -> None:
        self.expect_difference(
            lambda own_tensors: own_tensors.pop("scalar"),
            "the parameters are not the same on all ranks: rank 1 does not have `scalar`\n",
        )
        self.expect_difference(
            lambda own_tensors: own_tensors.update(more=torch.ones(1)),
            f"{'rank 0 does' if self.size == 2 else 'ranks 0, 2 do'} not have `more`\n",
        )

        def rename(own_tensors: dict[str, torch.Tensor]) -> None:
            own_tensors["module.bool"] = own_tensors.pop("bool")

        self.expect_difference(rename, "among them `module.bool`, which others do not have")

    def check_a_rank_that_cannot_read(self) -> None:
        self.expect_difference(
            lambda own_tensors: own_tensors.update(bool=torch.ones(1, device="meta")),
            "the parameters cannot be compared: rank 1 cannot read them\n"
            "  rank 1   `bool` is on the device meta, and has no bytes to compare",
        )
        self.expect_difference(
            lambda own_tensors: own_tensors.update(bool=torch.ones(1).to_sparse()),
            "torch.sparse_coo",
        )
        self.expect_difference(
            lambda own_tensors: own_tensors.update(bool=3),
            "`bool` of the type int, but only tensors can be",
        )

    def check_wrong_calls(self) -> None:
        """All ranks make the wrong call, so the error names all of them."""
        self.expect_error("of the type Tensor", hvd.check_parameters, torch.ones(3))
        self.expect_error("of the type int", hvd.check_parameters, 3)
        pair = ("a", torch.ones(1))
        self.expect_error("`a` twice", hvd.check_parameters, [pair, pair])
        self.expect_error("name must be a string", hvd.check_parameters, {}, 3)
        hvd.check_parameters(tensors())

    def check_process_sets(self) -> None:
        if self.size < 3:
            return
        pair = hvd.add_process_set([0, 2])
        own_tensors = {"a": torch.tensor([1.0 if self.rank != 1 else 2.0])}
        if pair.included():
            hvd.check_parameters(own_tensors, process_set=pair)
            own_tensors["a"] += self.rank
            self.expect_error("rank 2", hvd.check_parameters, own_tensors, process_set=pair)
        else:
            self.expect_error("not a member", hvd.check_parameters, own_tensors, process_set=pair)
        hvd.remove_process_set(pair)

    def check_joined_ranks_do_not_count(self) -> None:
        if self.size < 3:
            return
        own_tensors = {"a": torch.full((3,), float(self.rank == 0))}
        if self.rank != 0:
            hvd.check_parameters(own_tensors, "left")
            own_tensors["a"] += self.rank
            text = self.expect_error("`a`", hvd.check_parameters, own_tensors, "left")
            assert "rank 0" not in text and "up to 1 apart" in text
        hvd.join()

    def restart(self, interval: int | None) -> None:
        """Join a new job. FARANDOLE_CHECK_PARAMETERS is `interval`, or not set if this is None."""
        hvd.shutdown()
        os.environ.pop("FARANDOLE_CHECK_PARAMETERS", None)
        if interval is not None:
            os.environ["FARANDOLE_CHECK_PARAMETERS"] = str(interval)
        hvd.init()

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.full((2, 5), float(self.rank))).square().mean().backward()
        optimizer.step()

    def check_optimizers_check_every_third_step(self) -> None:
        self.restart(3)
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for _ in range(4):
            self.train(model, optimizer)
        if self.differs:
            model[2].weight.data[0, 0] += 0.5
        for _ in range(2):
            self.train(model, optimizer)
        if self.size > 1:
            text = self.expect_error("`2.weight`", self.train, model, optimizer)
            assert text.startswith(
                "the parameters are not the same on all ranks after step 7 of the optimizer: "
            ), text
            assert "They were the same after step 4: look for" in text
        self.restart(0)

    def check_optimizers_check_their_first_step(self) -> None:
        self.restart(1000)
        model = network(seed=self.rank)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        if self.size > 1:
            text = self.expect_error("param_groups[0]['params'][0]", self.train, model, optimizer)
            assert "after step 1 of the optimizer" in text
            assert "broadcast_parameters(" in text
        hvd.broadcast_parameters(model.state_dict(), 0)
        for _ in range(3):
            self.train(model, optimizer)
        self.restart(0)

    def check_optimizers_check_by_default(self) -> None:
        self.restart(None)
        model = network(seed=self.rank)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        if self.size > 1:
            self.expect_error("are not the same on all ranks", self.train, model, optimizer)
        self.restart(0)
        model = network(seed=self.rank)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer)

    def check_a_new_job_is_checked_from_its_first_step(self) -> None:
        """In a new job, all ranks compare after the first step, even those that keep their
        optimizer."""
        self.restart(1000)
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            self.train(model, optimizer)
        self.restart(1000)
        if self.differs:
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            model[0].bias.data += 1
        if self.size > 1:
            text = self.expect_error("params'][1]", self.train, model, optimizer)
            assert "after step 1 of the optimizer" in text
        self.restart(0)

    def check_one_part_of_the_parameters_at_a_time(self) -> None:
        """Each comparison is about one part of the parameters. Each element must be in exactly one
        part."""
        default_bytes, periodic_check.PART_BYTES = periodic_check.PART_BYTES, 24
        self.restart(2)
        for element in range(4):  # this element of the second weight differs
            model = network()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
            )
            steps = 0
            while self.size > 1:
                steps += 1
                if steps == 2 and self.differs:
                    model[2].weight.data[element // 2, element % 2 * 3] += 0.5
                try:
                    self.train(model, optimizer)
                except hvd.CallError as error:
                    assert "`2.weight` (float32 [" in str(error), error
                    assert f"after step {steps} of the optimizer" in str(error)
                    assert "They were the same after step 1: look for" in str(error)
                    break
                assert steps < 2 * 10, "not found"
            # The parameters in the order of their names, with their bytes: 0.bias 16, 0.weight 80,
            # 2.bias 8, 2.weight 32.
            offset = 16 + 80 + 8 + 4 * (element // 2 * 4 + element % 2 * 3)
            assert self.size == 1 or steps == 1 + 2 * (offset // 24), (element, steps)
        periodic_check.PART_BYTES = default_bytes
        self.restart(0)

    def check_ranks_that_train_alone_on_purpose(self) -> None:
        """Ranks may train alone and average their parameters later, so step() compares nothing."""
        self.restart(1)
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            with optimizer.no_sync():
                model(torch.full((2, 5), float(self.rank))).square().mean().backward()
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        if self.size > 1:
            self.expect_error("not the same", hvd.check_parameters, model.named_parameters())
        self.restart(0)
