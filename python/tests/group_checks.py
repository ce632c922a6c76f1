"""Checks of process sets, both those of init() and those added later, and of ranks that run out of
data and call join()."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import reference
from reference import input_of
from suite import Suite, forms_of, needs_async

from farandole import elastic


class GroupChecks(Suite):
    @needs_async
    def check_overlapping_groups(self) -> None:
        for round_ in range(20):
            own_groups = self.my_groups()[1:]
            shift = (self.rank + round_) % max(1, len(own_groups))
            handles = []
            for group in own_groups[shift:] + own_groups[:shift]:
                tensor, name = self.tensor((9,), seed=round_), f"in.{group.process_set_id}"
                total = self.api.allreduce_async(
                    tensor, name=name, op=self.api.Sum, process_set=group
                )
                parts = self.api.allgather_async(tensor, process_set=group)
                copy = self.api.broadcast_async(tensor, group.ranks[-1], process_set=group)
                handles.append((group, total, parts, copy))
            for group, total, parts, copy in reversed(handles):
                inputs = [input_of(rank, (9,), "float32", round_) for rank in group.ranks]
                self.expect(self.api.synchronize(total), np.sum(inputs, 0), "float32")
                self.expect(self.api.synchronize(parts), np.concatenate(inputs), "float32")
                self.expect(self.api.synchronize(copy), inputs[-1], "float32")
            for group in own_groups:
                self.api.barrier(process_set=group)

    def check_local_and_cross_ranks(self) -> None:
        # If the launcher has set these variables, the API must return their values.
        def launcher_value(name: str, default: int) -> int:
            return int(os.environ.get(f"FARANDOLE_{name}", default))

        local_expected = (
            launcher_value("LOCAL_RANK", self.rank),
            launcher_value("LOCAL_SIZE", self.size),
        )
        cross_expected = launcher_value("CROSS_RANK", 0), launcher_value("CROSS_SIZE", 1)
        assert (self.api.local_rank(), self.api.local_size()) == local_expected
        assert (self.api.cross_rank(), self.api.cross_size()) == cross_expected
        sizes = set(self.api.allgather_object(local_expected[1]))
        assert self.api.is_homogeneous() == (len(sizes) == 1)

    def check_ranks_in_groups(self) -> None:
        assert self.api.global_process_set.process_set_id == 0
        assert self.api.global_process_set.size() == self.size
        for number, group in enumerate(self.groups):
            assert group.process_set_id == number + 1
            assert group.included() == (self.rank in group.ranks)
            if group.included():
                assert group.ranks[group.rank()] == self.rank
            else:
                self.expect_errors_for_non_members(group)

    def expect_errors_for_non_members(self, group: Any) -> None:
        self.expect_error("not a member", group.rank)
        for call in (self.api.allreduce, self.api.allgather, self.api.reducescatter):
            self.expect_error("not a member", call, self.tensor((2,)), process_set=group)

    def check_init_again(self) -> None:
        """init() may be called again with other objects for the same groups."""
        other_objects = [self.api.ProcessSet(group.ranks) for group in self.groups]
        for _ in range(2):
            self.api.init(process_sets=other_objects)
        for group, same in zip(self.groups, other_objects, strict=True):
            assert same.process_set_id == group.process_set_id
            if same.included():
                self.api.barrier(process_set=same)
        self.api.init(process_sets="dynamic")

    def check_groups_of_init_come_again_when_the_job_is_formed_again(self) -> None:
        equal_sets = [self.api.ProcessSet(group.ranks) for group in self.groups]
        self.api.init(process_sets=equal_sets)
        added_sets = [self.api.add_process_set(group) for group in self.new_groups()]
        removed_sets = [group for group in self.groups if self.api.remove_process_set(group)]
        assert removed_sets == self.groups
        elastic.reset_job()
        for number, (group, same) in enumerate(zip(self.groups, equal_sets, strict=True)):
            assert group.process_set_id == same.process_set_id == number + 1
            self.expect_group_works(group)
            self.expect_group_works(same)
        for group in added_sets:
            assert (group.process_set_id, group.included()) == (None, None)
            text = "is lost, because this process has left the job in which it was added"
            self.expect_error(text, self.api.allreduce, self.tensor((2,)), process_set=group)
            self.api.add_process_set(group)
            self.expect_group_works(group)
            self.api.remove_process_set(group)
            self.expect_error("not registered", self.api.barrier, process_set=group)

    # Groups that are added and removed

    def expect_group_works(self, group: Any) -> None:
        if not group.included():
            self.expect_errors_for_non_members(group)
            return
        api, inputs = self.api, self.inputs_of_group(group, (6,))
        total = np.sum(inputs, 0)
        options = {"name": "here", "process_set": group}
        tensor, member = self.tensor((6,)), group.rank()
        self.expect(api.allreduce(tensor, op=api.Sum, **options), total, "float32")
        results = api.grouped_allreduce([tensor] * 3, op=api.Sum, **options)
        self.expect_all(results, [total] * 3, "float32")
        self.expect(api.allgather(tensor, **options), np.concatenate(inputs), "float32")
        self.expect(api.broadcast(tensor, group.ranks[-1], **options), inputs[-1], "float32")
        own_part = np.array_split(total, group.size())[member]
        self.expect(api.reducescatter(tensor, op=api.Sum, **options), own_part, "float32")
        ones = [[1] * group.size()] * group.size()
        received, _ = api.alltoall(tensor, ones[0], **options)
        self.expect(received, reference.alltoall(inputs, ones, member)[0], "float32")
        assert api.broadcast_object(self.rank, group.ranks[0], **options) == group.ranks[0]
        api.barrier(process_set=group)

    def new_groups(self) -> list[Any]:
        lists = {2: [[0], [1]], 3: [[0], [2], [1]], 4: [[0, 1], [2, 3], [1]]}
        return [self.api.ProcessSet(ranks) for ranks in lists.get(self.size, [])]

    def check_groups_are_added_and_removed(self) -> None:
        groups, numbers = self.new_groups(), set()
        for _ in range(3):
            for group in groups:
                assert group.process_set_id is None
                assert (group.size(), group.rank(), group.included()) == (None, None, None)
                assert self.api.add_process_set(group) is group
                numbers.add(group.process_set_id)
                self.expect_group_works(group)
            for group in reversed(groups):
                self.expect_group_works(group)
                assert self.api.remove_process_set(group)
                assert group.process_set_id is None
                self.expect_error(
                    "not registered", self.api.allreduce, self.tensor((2,)), process_set=group
                )
                assert not self.api.remove_process_set(group)
        assert len(numbers) == 3 * len(groups)  # a group that is added again gets a new number

    def check_groups_are_added_as_lists_too(self) -> None:
        for group in self.new_groups():
            added_set = self.api.add_process_set(group.ranks)
            same_group = self.api.ProcessSet(group.ranks)
            self.api.init(process_sets=[same_group])  # another object for the same group
            assert same_group.process_set_id == added_set.process_set_id
            self.expect_group_works(same_group)
            assert self.api.remove_process_set(same_group)
            assert added_set.process_set_id is None

    def check_the_world_is_not_removed(self) -> None:
        assert not self.api.remove_process_set(self.api.global_process_set)
        self.expect_error("exists already", self.api.add_process_set, list(range(self.size)))
        for value in ([self.size], [-1]):
            self.expect_error("which is not one of this job", self.api.add_process_set, value)
        self.expect_sum_works()

    def check_disagreements_about_groups(self) -> None:
        """If the ranks ask for different changes of the groups, all ranks get an error, and no
        group changes."""
        if self.size == 1:
            return
        api, is_first, (group, other_group, *_) = self.api, self.rank == 0, self.new_groups()
        text = self.expect_error(
            "the same order", api.add_process_set, group.ranks if is_first else other_group.ranks
        )
        for words in ("rank 0", "rank 1", str(group.ranks), str(other_group.ranks)):
            assert words in text, (words, text)
        api.add_process_set(group)
        self.expect_error("exists already", api.add_process_set, group.ranks)
        if is_first:
            self.expect_error("the same order", api.remove_process_set, group)
        else:
            self.expect_error("the same order", api.add_process_set, other_group)
        assert other_group.process_set_id is None
        api.add_process_set(other_group)
        self.expect_error(
            "the same order", api.remove_process_set, group if is_first else other_group
        )
        for added_group in (group, other_group):
            self.expect_group_works(added_group)
            assert api.remove_process_set(added_group)
        self.expect_sum_works()

    @needs_async
    def check_a_group_in_use_is_not_removed(self) -> None:
        if not self.groups:
            return
        group = self.groups[0]

        def start() -> Any:
            return self.api.allreduce_async(self.tensor((3,)), name="early", process_set=group)

        handle = start() if self.rank == group.ranks[0] else None
        text = self.expect_error("not waited for", self.api.remove_process_set, group)
        assert f"rank {group.ranks[0]}" in text, text
        if group.included():
            self.api.synchronize(handle or start())
        self.expect_group_works(group)

    # Join

    def count_of_steps(self, rank: int, pattern: int) -> int:
        return (2 * rank, 3 * (self.size - rank), 4, 5 * (rank == 0))[pattern]

    def check_join_with_uneven_numbers_of_steps(self) -> None:
        for pattern in range(4):
            steps = [self.count_of_steps(rank, pattern) for rank in range(self.size)]
            for step in range(steps[self.rank]):
                self.expect_step_of_ranks_that_have_not_joined(
                    [r for r in range(self.size) if steps[r] > step]
                )
            last_rank = self.api.join()
            assert steps[last_rank] == max(steps), (last_rank, steps)
            assert self.api.allgather_object(last_rank) == [last_rank] * self.size
            self.expect_sum_works()

    def expect_step_of_ranks_that_have_not_joined(self, ranks: list[int]) -> None:
        api, inputs = self.api, [input_of(rank, (5,), "float32") for rank in ranks]
        total = np.sum(inputs, 0)
        form = [form for form in forms_of("allreduce", self.frontend) if not form.grouped][-1]
        results = [
            api.allreduce(self.tensor((5,)), op=api.Sum),
            *api.grouped_allreduce([self.tensor((5,))] * 2, name="pair", op=api.Sum),
            *self.run("allreduce", form, [self.tensor((5,))], name="one", op=api.Sum),
        ]
        self.expect_all(results, [total] * 4, "float32")
        mean = total / self.size  # the divisor counts all ranks, as in Horovod
        self.expect(api.allreduce(self.tensor((5,))), mean, "float32", is_exact=False)
        average_of_present = api.allreduce(self.tensor((5,)), op=api.AverageOfPresent)
        self.expect(average_of_present, total / len(ranks), "float32", is_exact=False)
        with_zeros = [
            input_of(rank, (5,), "float32") * (rank in ranks) for rank in range(self.size)
        ]
        expected = reference.allreduce(with_zeros, "Adasum", "float32")
        actual = api.allreduce(self.tensor((5,)), op=api.Adasum)
        self.expect(actual, expected, "float32", is_exact=False, absolute_tolerance=1e-12)
        for op in ("Min", "Max", "Product"):
            expected = reference.allreduce(inputs, op, "float32")
            self.expect(api.allreduce(self.tensor((5,)), op=getattr(api, op)), expected, "float32")
        self.expect(api.allgather(self.tensor((5,))), np.concatenate(inputs), "float32")
        assert api.allgather_object(self.rank) == ranks

    def check_other_calls_while_a_rank_has_joined(self) -> None:
        if self.size == 1:
            assert self.api.join() == 0
            return
        api, tensor = self.api, self.tensor((self.size,))
        if self.rank != 0:
            for name, call in {
                "broadcast": lambda: api.broadcast(tensor, 1),
                "reducescatter": lambda: api.reducescatter(tensor),
                "alltoall": lambda: api.alltoall(tensor),
                "barrier": api.barrier,
                "grouped_reducescatter": lambda: api.grouped_reducescatter([tensor, tensor]),
            }.items():
                text = self.expect_error("joined", call)
                assert "rank 0" in text and name.removeprefix("grouped_") in text, text
            ranks = list(range(1, self.size))
            self.expect_step_of_ranks_that_have_not_joined(ranks)
        last_joined_rank = api.join()
        assert last_joined_rank != 0
        self.expect_sum_works()
