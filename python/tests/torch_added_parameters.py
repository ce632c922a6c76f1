"""Checks of parameters that a program adds to an optimizer after its construction, of parameters
that occur twice, and of parameters that the program puts into param_groups itself."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch_optimizer import OptimizerFixture, network, square_loss

import farandole.torch as hvd


class AddedParameterChecks(OptimizerFixture):
    def check_parameters_added_later_are_paired_by_name(self) -> None:
        """Each rank adds the layers in another order."""
        for frozen in (False, True):
            model, reference = network(), network()
            optimizer: Any = hvd.DistributedOptimizer(
                torch.optim.SGD(model[0].parameters(), lr=0.1), model.named_parameters()
            )
            other_parameters = [p for layer in (model[2], model[4]) for p in layer.parameters()]
            optimizer.add_param_group({"params": other_parameters[:: 1 if self.rank else -1]})
            reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
            for module in (model, reference):
                module[2].requires_grad_(not frozen)
            self.train(model, optimizer, range(4))
            self.train_reference(reference, reference_optimizer, range(4))
            self.expect_same_everywhere(model)
            self.expect_equal(model, reference)

    def check_parameters_added_later_are_compared(self) -> None:
        """The added layer differs between the ranks."""
        if self.size == 1:
            return
        model = network()
        with torch.no_grad():
            model[4].bias.fill_(self.rank)
        first_parameters = [*model[0].parameters(), *model[2].parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(first_parameters, lr=0.1), model.named_parameters()
        )
        self.train(model[:4], optimizer, range(3))
        optimizer.add_param_group({"params": list(model[4].parameters())})
        square_loss(model, self.rank, 3).backward()
        text = self.expect_error("are not the same on all ranks", optimizer.step)
        assert "`4.bias`" in text, text

    def check_a_parameter_that_occurs_twice(self) -> None:
        """If a parameter occurs twice, torch only warns, and updates this parameter twice in each
        step."""
        model, reference = network(), network()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped_optimizer, reference_optimizer = (
                torch.optim.SGD([*m.parameters(), m[0].weight], lr=0.1) for m in (model, reference)
            )
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        self.train(model, optimizer, range(4))
        self.train_reference(reference, reference_optimizer, range(4))
        self.expect_same_everywhere(model)
        self.expect_equal(model, reference)

    def check_a_parameter_that_is_replaced_in_param_groups(self) -> None:
        if self.size == 1:
            return
        model = network()
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer, range(2))
        model[0].bias = torch.nn.Parameter(torch.ones_like(model[0].bias))
        parameters = optimizer.param_groups[0]["params"]
        parameters[1] = model[0].bias
        square_loss(model, self.rank, 2).backward()
        self.expect_error("are not combined", optimizer.step)

    def check_parameters_in_param_groups_that_were_not_added(self) -> None:
        """If the program puts parameters into param_groups itself, the optimizer does not combine
        their gradients. So the first such gradient leads to an error."""
        if self.size == 1:
            return
        model = network()
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model[:4].parameters(), lr=0.1), model.named_parameters()
        )
        model[4].requires_grad_(False)
        self.train(model, optimizer, range(2))
        optimizer.param_groups[0]["params"] += list(model[4].parameters())
        self.train(model, optimizer, range(2))
        model[4].requires_grad_(True)
        for _ in range(2):
            optimizer.zero_grad()
            square_loss(model, self.rank, 2).backward()
            text = self.expect_error("are not combined", optimizer.step)
            assert "2 parameters" in text and "add_param_group()" in text, text
        optimizer.zero_grad()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.train(model, optimizer, range(2))
        self.expect_same_everywhere(model)
