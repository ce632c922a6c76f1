"""Checks of the elastic state, sampler and loop, in a job of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import farandole.torch as hvd
from farandole.torch import elastic


class ElasticChecks:
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def state(self) -> elastic.TorchState:
        """Return a state. Its model, learning rate and other values differ between the ranks."""
        torch.manual_seed(self.rank)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (self.rank + 1), momentum=0.9)
        return elastic.TorchState(
            model,
            hvd.DistributedOptimizer(optimizer, model.named_parameters()),
            sampler=elastic.ElasticSampler(range(10), shuffle=False),
            epoch=self.rank,
            seen=[self.rank],
        )

    def check_sync_gives_all_ranks_the_state_of_rank_0(self) -> None:
        state = self.state()
        state.sync()
        hvd.check_parameters(state.model.named_parameters())
        assert state.optimizer.param_groups[0]["lr"] == 0.1
        assert (state.epoch, state.seen) == (0, [0])

    def check_restore_goes_back_to_the_commit(self) -> None:
        state = self.state()
        state.sync()
        saved_weight = state.model.weight.detach().clone()
        for _ in range(2):
            state.model.weight.data += 1
            state.optimizer.param_groups[0]["lr"] = 5.0
            state.seen.append(3)
            state.epoch = 7
            state.restore()
            assert torch.equal(state.model.weight, saved_weight)
            assert state.optimizer.param_groups[0]["lr"] == 0.1
            assert (state.epoch, state.seen) == (0, [0])
        state.model.weight.data += 1
        state.epoch = 8
        state.commit()
        state.epoch = 9
        state.restore()
        assert torch.equal(state.model.weight, saved_weight + 1)
        assert state.epoch == 8

    def check_restore_reaches_the_scheduler_of_the_wrapped_optimizer(self) -> None:
        torch.manual_seed(3)
        model = nn.Linear(3, 2)
        wrapped_optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        scheduler = torch.optim.lr_scheduler.StepLR(wrapped_optimizer, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, model.named_parameters())
        state = elastic.TorchState(model, optimizer)
        for _ in range(2):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.4
            optimizer.param_groups[0]["added"] = True
            state.restore()
            assert optimizer.param_groups[0]["lr"] == 0.8
            assert "added" not in optimizer.param_groups[0]

    def check_a_scheduler_in_the_state_keeps_its_optimizer(self) -> None:
        for distributed in (False, True):
            state = self.state()
            wrapped_optimizer = torch.optim.SGD(state.model.parameters(), lr=1.0)
            optimizer = (
                hvd.DistributedOptimizer(wrapped_optimizer) if distributed else wrapped_optimizer
            )
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            state = elastic.TorchState(state.model, optimizer, scheduler=scheduler, batch=0)
            for _ in range(self.rank):
                scheduler.step()
            state.sync()
            assert state.scheduler is scheduler and scheduler.optimizer is optimizer
            assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 1.0)
            state.scheduler.step()
            state.commit()
            state.scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.25
            state.restore()
            assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)
            state.scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.25

    def check_values_may_be_none(self) -> None:
        state = elastic.TorchState(best=None, epoch=None)
        state.sync()
        state.best = state.epoch = 99
        state.restore()
        assert state.best is None and state.epoch is None
        state.best = self.rank
        state.commit()
        state.sync()
        assert state.best == 0

    def check_attributes_of_a_subclass(self) -> None:
        class StateOfTheProgram(elastic.TorchState):
            def __init__(self, **values: Any) -> None:
                self.note = "set before the other attributes"
                super().__init__(**values)

        state = StateOfTheProgram(epoch=3)
        assert (state.note, state.epoch) == ("set before the other attributes", 3)
        assert state.model is None and state.optimizer is None

    def check_a_wrong_call_is_not_repeated(self) -> None:
        calls: list[int] = []

        @elastic.run
        def train(state: elastic.TorchState) -> None:
            calls.append(state.epoch)
            if len(calls) == 1:
                hvd.broadcast(torch.ones(2), root_rank=self.size)

        try:
            train(self.state())
        except hvd.CallError:
            assert calls == [0]
        else:
            raise AssertionError("the wrong call was accepted")

    def check_a_new_model_replaces_the_old_one(self) -> None:
        state = self.state()
        torch.manual_seed(self.rank)
        state.model = nn.Linear(4, 4)
        state.sync()
        assert state.model.weight.shape == (4, 4)
        hvd.check_parameters(state.model.named_parameters())

    def check_processed_samples_are_left_out(self) -> None:
        state = self.state()
        sampler = state.sampler
        sampler.set_epoch(3)
        count = -(-10 // self.size)
        assert [*sampler] == [(self.rank + self.size * i) % 10 for i in range(count)]
        sampler.record_batch(0, 2)
        state.commit()
        state.sync()
        done_count = 2 * self.size
        assert sampler.processed_num == done_count and sampler.epoch == 3
        assert sampler.state_dict() == {"epoch": 3, "processed_num": done_count}
        remaining = hvd.allgather_object(list(sampler))
        assert set().union(*remaining) == set(range(done_count, 10))
        assert {len(part) for part in remaining} == {len(sampler)}
        sampler.set_epoch(4)
        assert sampler.processed_num == 0 and len(sampler) == count

    def check_a_batch_that_is_recorded_after_a_restore_counts(self) -> None:
        """After a restore, the program may go on with the loop that was running before, and record
        its next batch. This batch counts."""
        state = self.state()
        state.sampler.record_batch(0, 1)
        state.commit()
        state.restore()
        state.sampler.record_batch(1, 1)
        assert state.sampler.processed_num == 2 * self.size
        state.commit()
        state.restore()
        remaining = hvd.allgather_object(list(state.sampler))
        assert set().union(*remaining) == set(range(2 * self.size, 10))

    def check_a_new_division_keeps_the_order_of_the_epoch(self) -> None:
        """The sampler shuffles the whole epoch first, and only then leaves out the processed
        samples. So the order of the other samples stays the same."""
        sampler = elastic.ElasticSampler(range(23), seed=7)
        sampler.set_epoch(2)

        def in_order() -> list[int]:
            rank_samples = hvd.allgather_object(list(sampler))
            return [part[index] for index in range(len(sampler)) for part in rank_samples]

        whole_epoch = in_order()[:23]
        sampler.record_batch(0, 3)
        sampler.load_state_dict(sampler.state_dict())
        assert in_order()[: 23 - 3 * self.size] == whole_epoch[3 * self.size :]
        sampler.record_batch(1, 23)
        sampler.reset()
        assert [*sampler] == [] and len(sampler) == 0

    def check_shuffled_samples(self) -> None:
        """Together the ranks get all samples, in an order that depends on the epoch."""
        sampler = elastic.ElasticSampler(range(20), seed=5)
        orders = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            parts = hvd.allgather_object(list(sampler))
            assert set().union(*parts) == set(range(20))
            orders.append(parts)
        assert orders[0] != orders[1]

    def check_handlers_of_a_program(self) -> None:
        class Counter:
            count = 0

        class CounterHandler(elastic.StateHandler):
            def save(self) -> None:
                self.saved = self.value.count

            def restore(self) -> None:
                self.value.count = self.saved

            def sync(self) -> None:
                self.value.count = hvd.broadcast_object(self.value.count)

        registry_before = elastic.get_handler_registry()
        elastic.set_handler_registry([*registry_before, (Counter, CounterHandler)])
        counter = Counter()
        counter.count = self.rank + 1
        state = elastic.TorchState(counter=counter)
        elastic.set_handler_registry(registry_before)
        state.sync()
        assert counter.count == 1
        state.commit()
        counter.count = 5
        state.restore()
        assert counter.count == 1 and state.counter is counter

    def check_run_after_a_failure_and_after_a_change_of_hosts(self) -> None:
        """run() restores the state after a failure, but not after a change of hosts.

        run() calls the reset callbacks in both cases.
        """
        begins: list[int] = []
        resets: list[int] = []
        state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=0)
        state.register_reset_callbacks([lambda: resets.append(hvd.size())])

        @elastic.run
        def train(state: elastic.ObjectState, result: str) -> str:
            begins.append(state.epoch)
            for epoch in range(state.epoch, 4):
                state.epoch = epoch
                hvd.allreduce(torch.ones(2), name="work")
                if state.epoch == 2 and len(begins) == 1:
                    raise hvd.GroupLostError("as if a call had failed")
                if state.epoch == 3 and len(begins) == 2:
                    raise elastic.HostsUpdatedInterrupt(skip_sync=True)
                if state.epoch == 1:
                    state.commit()
            return result

        assert train(state, "done") == "done"
        assert begins == [0, 1, 3]
        assert resets == [self.size, self.size]

    def check_training_goes_on_after_a_failure(self) -> None:
        """The failure comes between backward() and step()."""
        state = self.state()
        failures = iter([True])

        @elastic.run
        def train(state: elastic.TorchState) -> None:
            while state.epoch < 4:
                state.optimizer.zero_grad()
                state.model(torch.full((2, 3), float(hvd.rank()))).square().sum().backward()
                if state.epoch == 2 and next(failures, False):
                    raise hvd.GroupLostError("as if a call had failed")
                state.optimizer.step()
                state.epoch += 1
                state.commit()

        train(state)
        hvd.check_parameters(state.model.named_parameters())

    def check_a_state_is_saved_between_steps(self) -> None:
        weight = nn.Parameter(torch.zeros(1))
        optimizer: Any = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(
            optimizer, [("weight", weight)], backward_passes_per_step=2
        )
        state = elastic.TorchState(optimizer=optimizer, epoch=0)
        for _ in range(2):
            weight.sum().backward()
            for call in (state.commit, state.check_host_updates):
                if hvd.size() == 1:  # the only rank of a job does not count the passes
                    call()
                    continue
                try:
                    call()
                except hvd.CallError as error:
                    assert "between the 2 backward passes of a step" in str(error), error
                else:
                    raise AssertionError("the gradient of the first pass would be lost")
            weight.sum().backward()
            optimizer.step()
            state.commit()
            optimizer.zero_grad()
        weight.sum().backward()
        state.restore()  # this also undoes the first pass of the step
        state.commit()

    def check_a_failed_step_is_repeated(self) -> None:
        """A failure between backward() and step() simulates a failed call. After the next ready(),
        each rank has the state of rank 0 and repeats the step."""
        state = self.state()
        step, begun_steps = elastic.Step(state), []
        while step.ready() and state.epoch < 4:
            with step:
                begun_steps.append(state.epoch)
                state.optimizer.zero_grad()
                state.model(torch.full((2, 3), float(hvd.rank()))).square().sum().backward()
                if begun_steps == [0, 1, 2]:
                    raise hvd.GroupLostError("as if a call had failed")
                state.optimizer.step()
                state.epoch += 1
        assert begun_steps == [0, 1, 2, 2, 3]
        hvd.check_parameters(state.model.named_parameters())

    def train_with_failure(self, op: hvd.ReduceOp, fails_in: str) -> torch.Tensor:
        """Make four steps with a GradScaler, each with a gradient of 1 and with zero_grad() at its
        end. The third step fails in its first attempt. Return the weight."""
        weight = nn.Parameter(torch.zeros(1))
        optimizer: Any = torch.optim.SGD([weight], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], op=op)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state = elastic.TorchState(optimizer=optimizer, scaler=scaler, weight=weight, step=0)
        failures = iter([True])

        def fail(fault_point: str) -> None:
            if fault_point == fails_in and state.step == 2 and next(failures, False):
                raise hvd.GroupLostError("as if a call had failed")

        optimizer.register_step_pre_hook(lambda *_: fail("step"))

        @elastic.run
        def train(state: elastic.TorchState) -> None:
            while state.step < 4:
                scaler.scale(weight.sum()).backward()
                fail("backward")
                if fails_in == "unscale":
                    scaler.unscale_(optimizer)
                fail("unscale")
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                state.step += 1
                state.commit()

        train(state)
        return weight.detach()

    def check_a_disabled_scaler_is_restored(self) -> None:
        elastic.TorchState(scaler=torch.amp.GradScaler("cpu", enabled=False)).restore()

    def check_nothing_of_a_failed_step_is_left(self) -> None:
        for op in (hvd.Average, hvd.Adasum):
            for fault_point in ("backward", "unscale", "step"):
                weight = self.train_with_failure(op, fault_point)
                assert torch.equal(weight, torch.full((1,), -4.0)), (op, fault_point, weight)
