"""Checks that all ranks can begin with the parameters and the optimizer state of one rank."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from conformance import Conformance
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch_frontend import TorchFrontend
from torch_optimizer import OptimizerChecks, network, square_loss

import farandole.torch as hvd
from farandole.comparison import gather_error_texts


class PullBackOptimizer(torch.optim.Optimizer):
    """An optimizer whose state contains the first values of the parameters, as in MADGRAD."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["first"] = parameter.detach().clone()
            parameter.sub_(self.param_groups[0]["lr"] * parameter.grad)
            parameter.lerp_(state["first"], 0.1)


class OptimizerWithOtherEntries(torch.optim.SGD):
    """An optimizer whose state_dict() has no entry "state", as in a common implementation of the
    Lookahead optimizer."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"rate": self.param_groups[0]["lr"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.param_groups[0]["lr"] = state_dict["rate"]


class StateChecks:
    expect_same_everywhere = OptimizerChecks.expect_same_everywhere
    expect_equal = OptimizerChecks.expect_equal
    train = OptimizerChecks.train
    expect_error = Conformance.expect_error
    api = TorchFrontend.api

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def check_a_wrong_broadcast_leaves_nothing_in_flight(self) -> None:
        model = nn.Linear(2, 2)
        for _ in range(3):
            self.expect_error("root rank", hvd.broadcast_parameters, model.state_dict(), self.size)
            if self.rank == 0:
                gc.collect()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def check_a_broadcast_that_fails_on_one_rank(self) -> None:
        """Rank 0 cannot send one of the parameters. It gets an error, but sends the others. If it
        then broadcasts the missing one, the broadcast of the other ranks is complete, too."""
        values = {f"p{i}": torch.full((2,), float(self.rank)) for i in range(4)}
        if self.rank == 0:
            invalid_values = {**values, "p1": torch.ones(2, device="meta")}
            self.expect_error("on meta", hvd.broadcast_parameters, invalid_values, 0)
            hvd.broadcast_parameters({"p1": values["p1"]}, 0)
        else:
            hvd.broadcast_parameters(values, 0)
        hvd.broadcast_parameters(values, 0)
        assert all(torch.equal(value, torch.zeros(2)) for value in values.values())

    def check_hooks_do_not_see_the_step_that_makes_the_state(self) -> None:
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
        steps: list[str] = []
        handles = [
            optimizer.register_step_pre_hook(lambda *_: steps.append("pre")),
            optimizer.register_step_post_hook(lambda *_: steps.append("post")),
            register_optimizer_step_pre_hook(lambda *_: steps.append("global pre")),
            register_optimizer_step_post_hook(lambda *_: steps.append("global post")),
        ]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert steps == [] and len(optimizer.state) == len(list(model.parameters()))
        square_loss(model, self.rank, 0).backward()
        optimizer.step()
        assert sorted(steps) == ["global post", "global pre", "post", "pre"]
        for handle in handles:
            handle.remove()

    def check_the_state_of_a_wrapper_without_hooks_is_made(self) -> None:
        class Wrapper(torch.optim.Optimizer):
            def __init__(self, wrapped_optimizer: torch.optim.Optimizer) -> None:
                self.within, self.defaults = wrapped_optimizer, wrapped_optimizer.defaults

            @property
            def param_groups(self) -> Any:  # type: ignore[override]
                return self.within.param_groups

            @property
            def state(self) -> Any:  # type: ignore[override]
                return self.within.state

            def state_dict(self) -> Any:
                return self.within.state_dict()

            def load_state_dict(self, state: Any) -> None:
                self.within.load_state_dict(state)

            def step(self, closure: Any = None) -> Any:  # type: ignore[override]
                return self.within.step(closure)

        optimizer = Wrapper(torch.optim.Adam(network().parameters()))
        assert not hasattr(optimizer, "_optimizer_step_pre_hooks")
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert len(optimizer.state) > 0

    def check_broadcast_parameters(self) -> None:
        for as_dict in (False, True):
            torch.manual_seed(self.rank)
            model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
            model = model.to(memory_format=torch.channels_last)
            model[1].num_batches_tracked += self.rank
            own_tensors = dict(model.named_parameters() if as_dict else model.state_dict())
            old_tensors = {name: tensor.detach().clone() for name, tensor in own_tensors.items()}
            hvd.broadcast_parameters(
                own_tensors.items() if as_dict else own_tensors, root_rank=self.size - 1
            )
            self.expect_same_everywhere(model)
            if self.rank == self.size - 1:
                assert all(
                    torch.equal(old_tensors[name], own_tensors[name]) for name in own_tensors
                )
        self.expect_error("'x' of the type int", hvd.broadcast_parameters, {"x": 1}, 0)

    def check_broadcast_optimizer_state(self) -> None:
        """The root has trained, and has changed the options of its optimizer. The other ranks have
        new optimizers."""
        makers: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9)),
            lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
            torch.optim.Rprop,
        ]
        for make_optimizer in makers:
            model, root = network(), self.size - 1
            optimizer = make_optimizer(model.parameters())
            if self.rank == root:
                for step in range(3):
                    optimizer.zero_grad()
                    loss = square_loss(model, 0, step)
                    loss.backward()
                    optimizer.step()
                optimizer.param_groups[0]["lr"] = 0.025
            hvd.broadcast_optimizer_state(optimizer, root)
            assert float(optimizer.param_groups[0]["lr"]) == 0.025
            hvd.broadcast_parameters(model.state_dict(), root)
            self.train(model, hvd.DistributedOptimizer(optimizer), range(3))
            self.expect_same_everywhere(model)

    def check_broadcast_of_state_that_no_rank_has(self) -> None:
        """If no optimizer has a state yet, the broadcast makes a state for each one. After that,
        training must go on as it would without the broadcast."""
        makers: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, weight_decay=0.1, amsgrad=True),
            lambda p: hvd.DistributedOptimizer(torch.optim.AdamW(p), op=hvd.Sum),
            lambda p: hvd.DistributedOptimizer(torch.optim.Adam(p), op=hvd.Adasum),
            lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
            torch.optim.Adadelta,
            torch.optim.Adamax,
            torch.optim.NAdam,
            torch.optim.RAdam,
            torch.optim.Rprop,
            torch.optim.ASGD,
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
            PullBackOptimizer,
        ]
        for make_optimizer in makers:
            model, other_model = network(), network()
            optimizer = make_optimizer(model.parameters())
            untouched_optimizer = make_optimizer(other_model.parameters())
            hvd.broadcast_optimizer_state(optimizer, 0)
            assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
            self.expect_equal(model, other_model, tolerance=0)
            for step in range(3):
                for module, stepper in ((model, optimizer), (other_model, untouched_optimizer)):
                    stepper.zero_grad()
                    square_loss(module, 0, step).backward()
                    stepper.step()
            self.expect_equal(model, other_model)
        model = network()
        # The broadcast must keep these gradients, even those of frozen layers.
        square_loss(model, self.rank, 0).backward()
        next(model.parameters()).requires_grad_(False)
        hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1), 0)
        self.expect_equal(model, network(), tolerance=0)

        class OptimizerOfTheProgram(torch.optim.Optimizer):
            def step(self) -> None:  # type: ignore[override]
                for parameter in self.param_groups[0]["params"]:
                    self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1

        optimizer_of_the_program = OptimizerOfTheProgram(
            network().parameters(), {}
        )  # the options {} have no learning rate
        hvd.broadcast_optimizer_state(optimizer_of_the_program, 0)
        assert (
            all(state == {"step": 0} for state in optimizer_of_the_program.state.values())
            and optimizer_of_the_program.state
        )
        table = nn.Embedding(5, 2, sparse=True)
        values = table.weight.detach().clone()
        sparse = torch.optim.SparseAdam(table.parameters())
        hvd.broadcast_optimizer_state(sparse, 0)  # this optimizer gets no state
        assert torch.equal(table.weight, values)
        assert not sparse.state_dict()["state"]
        table(torch.tensor([1])).sum().backward()  # a gradient of zeros would make its state dense
        sparse.step()

    def check_state_that_cannot_be_sent(self) -> None:
        """If one rank cannot send or load a state, all ranks get an error."""
        optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
        optimizer.param_groups[0]["odd"] = threading.Lock()
        text = self.expect_error("cannot be sent", hvd.broadcast_optimizer_state, optimizer, 0)
        assert "cannot pickle" in text, text
        if self.size == 1:
            return
        parameters = list(network().parameters())
        groups = [{"params": parameters}] if self.rank else [{"params": [p]} for p in parameters]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        text = self.expect_error(
            "not all ranks could load", hvd.broadcast_optimizer_state, optimizer, 0
        )
        assert "different number of parameter groups" in text, text

        class FailingToUnpickle:
            def __reduce__(self) -> Any:
                return (int, ("0" if hvd.rank() else "not a number",))

        optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
        optimizer.param_groups[0]["odd"] = FailingToUnpickle()
        text = self.expect_error(
            "not all ranks could load", hvd.broadcast_optimizer_state, optimizer, 0
        )
        assert "invalid literal" in text, text

    def check_failures_are_known_to_all_ranks_that_have_not_joined(self) -> None:
        last_rank = self.size - 1
        error_text = "broken" if self.rank == last_rank else ""
        assert gather_error_texts("", "well", hvd.global_process_set) == {}
        assert gather_error_texts(error_text, "broken", hvd.global_process_set) == {
            last_rank: "broken"
        }
        if self.size > 1 and self.rank > 0:
            assert gather_error_texts(error_text, "joined", hvd.global_process_set) == {
                last_rank: "broken"
            }
        hvd.join()

    def check_options_of_all_kinds_are_sent(self) -> None:
        options = {
            "lr": np.float32(0.5),
            "dtype": torch.bfloat16,
            "names": {"a", "b"},
            "scale": np.ones(2),
            "function": lambda x: x + 1,
            "sparse": torch.eye(2).to_sparse(),  # the engine cannot send it as a tensor
        }
        optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
        group = optimizer.param_groups[0]
        group.update(options if self.rank == self.size - 1 else {"mine": self.rank})
        hvd.broadcast_optimizer_state(optimizer, self.size - 1)
        assert optimizer.param_groups[0] is group and "mine" not in group
        assert group["lr"] == 0.5 and group["dtype"] is torch.bfloat16
        assert group["names"] == {"a", "b"} and group["scale"].sum() == 2
        assert group["function"](1) == 2 and group["sparse"].to_dense().sum() == 2

    def check_state_keeps_its_dtypes(self) -> None:
        """NAdam has one float32 value per parameter; torch would convert it to bfloat16."""
        model, root = network().bfloat16(), self.size - 1
        optimizer = torch.optim.NAdam(model.parameters())
        if self.rank == root:
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root)
        [first_state, *other_states] = hvd.allgather_object(optimizer.state_dict()["state"])
        for other_state in other_states:
            for index, values in first_state.items():
                for key, value in values.items():
                    assert other_state[index][key].dtype == value.dtype, key
                    assert torch.equal(other_state[index][key], value), key
        value_before = optimizer.state_dict()["state"][0]["mu_product"].clone()
        state = hvd.elastic.TorchState(optimizer=optimizer)
        optimizer.step()
        state.restore()
        assert torch.equal(optimizer.state_dict()["state"][0]["mu_product"], value_before)

    def check_a_tensor_that_occurs_twice_is_one_tensor_afterwards(self) -> None:
        rate = torch.tensor(0.5 if self.rank else 0.25)
        groups = [{"params": [p]} for p in network().parameters()]
        optimizer = torch.optim.Adam(groups, lr=rate)
        hvd.broadcast_optimizer_state(optimizer, 0)
        first_group, second_group = optimizer.param_groups[:2]
        assert first_group["lr"] is second_group["lr"] and float(first_group["lr"]) == 0.25

    def check_optimizers_that_load_in_their_own_way(self) -> None:
        """Programs have optimizer classes with a load_state_dict() of their own. Here, two classes
        wrap another optimizer and share its param_groups; the third one loads a state in place."""

        class SharingWrapper(torch.optim.Optimizer):  # as sharpness-aware minimization does
            def __init__(self, parameters: Any) -> None:
                super().__init__(parameters, {"lr": 1.0 - hvd.rank() / 10})
                self.within = torch.optim.SGD(self.param_groups)
                self.param_groups = self.within.param_groups

            def load_state_dict(self, state_dict: Any) -> None:
                super().load_state_dict(state_dict)
                self.within.param_groups = self.param_groups

        class ForwardingWrapper(torch.optim.Optimizer):
            def __init__(self, parameters: Any) -> None:
                self.within = torch.optim.SGD(parameters, lr=1.0 - hvd.rank() / 10)

            param_groups = property(lambda self: self.within.param_groups)  # type: ignore[assignment]
            state = property(lambda self: self.within.state)  # type: ignore[assignment]

            def state_dict(self) -> Any:
                return self.within.state_dict()

            def load_state_dict(self, state_dict: Any) -> None:
                self.within.load_state_dict(state_dict)

        class InPlaceLoadingOptimizer(torch.optim.SGD):
            def load_state_dict(self, state_dict: Any) -> None:
                self.param_groups[0]["lr"] = state_dict["param_groups"][0]["lr"]
                for index, parameter in enumerate(self.param_groups[0]["params"]):
                    self.state[parameter] = state_dict["state"][index]

        other_optimizer = OptimizerWithOtherEntries(
            network().parameters(), lr=1.0 - hvd.rank() / 10
        )
        hvd.broadcast_optimizer_state(other_optimizer, 0)
        assert other_optimizer.param_groups[0]["lr"] == 1.0

        makers: list[Callable[[Any], Any]] = [
            SharingWrapper,
            ForwardingWrapper,
            lambda p: InPlaceLoadingOptimizer(p, lr=1.0 - hvd.rank() / 10),
        ]
        for make_optimizer in makers:
            model = network()
            optimizer = make_optimizer(model.parameters())
            [group] = optimizer.param_groups
            for parameter in model.parameters() if self.rank == 0 else ():
                optimizer.state[parameter]["seen"] = 3
            hvd.broadcast_optimizer_state(optimizer, 0)
            within = vars(optimizer).get("within", optimizer)
            assert optimizer.param_groups[0] is group is within.param_groups[0]
            assert group["lr"] == 1.0
            assert all(optimizer.state[p]["seen"] == 3 for p in model.parameters())

    def check_a_scheduler_sees_the_options_that_were_sent(self) -> None:
        """A scheduler that was made for the wrapped optimizer reads the options of this optimizer.
        The scheduler must see the options that the root has sent, even after the root has loaded a
        checkpoint."""
        model = network()
        wrapped_optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if self.rank else 0.8)
        scheduler = torch.optim.lr_scheduler.StepLR(wrapped_optimizer, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        if self.rank == 0:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        hvd.broadcast_optimizer_state(optimizer, 0)
        for step in range(2):
            optimizer.zero_grad()
            square_loss(model, self.rank, step).backward()
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.2
        assert optimizer.state is wrapped_optimizer.state and len(wrapped_optimizer.state) == len(
            list(model.parameters())
        )
        self.expect_same_everywhere(model)
