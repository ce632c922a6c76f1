"""Check the parameters of an optimizer from time to time, so that ranks that have drifted apart get
an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from farandole.arrays import Array, Arrays
from farandole.comparison import gather_texts, table
from farandole.errors import CallError
from farandole.group import Group, OptimizerName, Period
from farandole.training.parameter_check import ADVICE, check

PART_BYTES = 16 << 20


class PeriodicCheck:
    """Checks the parameters of an optimizer. It checks all of them after the first step in each
    Period of the group, and after the first step with new parameters. (A Period begins with init()
    or with join().) Later, it checks the next part of the parameters after every `interval` steps.
    """

    def __init__(
        self, arrays: Arrays, interval: int, name: OptimizerName, process_set: Group
    ) -> None:
        self._arrays, self._interval, self._name, self._group = arrays, interval, name, process_set
        self._period: Period | None = None
        self._step_count = 0

    def check_all_again(self) -> None:
        """Check all parameters after the next step, because the optimizer has new ones."""
        self._period = None

    def on_step_end(
        self, read_params: Callable[[], Mapping[str, Array]], describe_options: Callable[[], str]
    ) -> None:
        """Check the parameters if a check is due. `describe_options` returns the optimizer's class
        and options as a text. If the texts of the ranks differ, too, the error contains them as a
        likely cause."""
        if self._group.included() is False:
            return  # in an elastic job, a member may leave the group
        if self._group.period != self._period:
            # Some members may have a new optimizer, or may have made fewer steps before they called
            # join(). So all members count the steps from 0 again.
            self._period, self._step_count = self._group.period, 0
        self._step_count += 1
        part_number, steps_since_check = divmod(self._step_count - 1, self._interval)
        if steps_since_check != 0:
            return
        checked_params, advice = read_params(), ADVICE
        if part_number > 0:
            checked_params, part_count = _part_of(self._arrays, checked_params, part_number)
            # The step after which the same part was checked last.
            last_checked_step = max(1, self._step_count - part_count * self._interval)
            advice = (
                f"They were the same after step {last_checked_step}: look for what changes them on "
                "some ranks only, such as a branch on the rank, or a checkpoint that one rank loads"
            )
        name = f"{self._name}.parameters"
        time_of_check = f" after step {self._step_count} of the optimizer"
        try:
            check(
                self._arrays,
                checked_params,
                self._group,
                name,
                time_of_check=time_of_check,
                advice=advice,
            )
        except CallError as error:  # raised on all ranks
            texts = gather_texts(describe_options().encode(), f"{name}.options", self._group)
            if len(set(texts.values())) < 2:
                raise
            rows = {rank: text.decode() for rank, text in texts.items()}
            raise CallError(
                f"{error}\nThe optimizers differ, which may be the cause:\n{table(rows)}"
            ) from None


def _part_of(
    arrays: Arrays, params: Mapping[str, Array], part_number: int
) -> tuple[dict[str, Array], int]:
    """Divide the bytes of all parameters into parts of PART_BYTES. Return the elements that begin
    in part `part_number`, and the number of parts. The part after the last part is part 0 again."""
    element_counts = {name: math.prod(parameter.shape) for name, parameter in params.items()}
    element_sizes = {name: arrays.item_bytes(parameter) for name, parameter in params.items()}
    part_count = -(
        -sum(element_counts[name] * element_sizes[name] for name in params) // PART_BYTES
    )
    part_begin = part_number % max(1, part_count) * PART_BYTES
    part, offset = {}, 0
    for name, parameter in sorted(params.items()):
        element_count, element_bytes = element_counts[name], element_sizes[name]
        boundaries = (part_begin, part_begin + PART_BYTES)
        begin, end = (-((offset - boundary) // element_bytes) for boundary in boundaries)
        begin, end = max(0, begin), min(end, element_count)
        if end - begin == element_count:
            part[name] = parameter
        elif begin < end:
            part[name] = arrays.flat(parameter)[begin:end]
        offset += element_count * element_bytes
    return part, part_count
